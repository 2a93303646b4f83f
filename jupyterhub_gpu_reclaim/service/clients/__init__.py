"""The outside world of the Hub's side, one module each."""

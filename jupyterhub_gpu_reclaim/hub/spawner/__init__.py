"""Stage 6, bring it back: what runs in the Hub's process."""

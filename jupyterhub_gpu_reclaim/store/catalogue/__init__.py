"""Which checkpoints are committed, and what nobody needs any more."""

"""A checkpoint while it is written: begun, filled, committed, or never there."""

"""Whole checkpoints on their way: node's folder to store, store to one file, back."""

"""Moves whole checkpoints: from the node's folder to the store, to a file, and back."""

"""Whether a saved session fits a place: its GPUs, its CPU, its rights."""

"""The checkpoint store: a checkpoint is committed, or it does not exist."""

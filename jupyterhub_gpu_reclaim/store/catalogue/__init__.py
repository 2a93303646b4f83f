"""Lists committed checkpoints, and deletes objects that no checkpoint needs."""

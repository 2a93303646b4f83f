"""Stage 1, what is happening: samples of sessions, and usage over a window."""

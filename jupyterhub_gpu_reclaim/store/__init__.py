"""Stage 5, keep it safe: checkpoints, committed or not there at all."""

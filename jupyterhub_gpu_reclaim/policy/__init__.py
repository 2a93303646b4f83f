"""Stage 2, what should happen: pure decisions, each with its reason."""

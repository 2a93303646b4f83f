"""Stage 3, once and crash-proof: phases, journal, work queue, reconciler."""

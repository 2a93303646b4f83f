"""Moves sessions between phases, durably: phases, journal, work queue, reconciler."""

"""Locks kept in the store itself: what is being written, uploaded or deleted."""

"""Runs operations on sessions: one at a time for each, with a durable record."""

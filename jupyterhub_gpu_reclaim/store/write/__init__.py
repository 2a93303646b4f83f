"""Writes a checkpoint: begun, filled, and committed or discarded."""

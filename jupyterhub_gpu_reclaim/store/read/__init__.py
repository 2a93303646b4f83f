"""Reads a committed checkpoint: every byte is authenticated before it is used."""

"""Finds the sessions of this node: looked up on each call, never registered."""

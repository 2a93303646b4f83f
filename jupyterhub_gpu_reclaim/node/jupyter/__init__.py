"""Wakes a restored Jupyter server before its cullers look at the clock."""

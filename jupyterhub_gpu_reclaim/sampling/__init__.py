"""Samples what sessions do, and sums the samples up into usage over a window."""

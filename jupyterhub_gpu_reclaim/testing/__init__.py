"""Fakes that are shipped: named by their fault, held by the real ones' contracts."""

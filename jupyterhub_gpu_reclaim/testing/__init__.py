"""Shipped fakes: named by their fault, tested by the contract suite of the real ones."""

"""Shipped fakes: named by their fault, held to the contract suite of the real ones."""

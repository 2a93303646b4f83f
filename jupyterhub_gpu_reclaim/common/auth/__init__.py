"""Proofs of identity between our own programs, and the names that the audit uses.

A secret never leaves the program that holds it: both sides prove that they know it
(``handshake``), and an open tab gets a token for its own session alone
(``tab_tokens``).
"""

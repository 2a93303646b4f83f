"""Keeps and brings back checkpoints, and deletes expired ones.

``expiry`` deletes expired ones; until when each is kept is computed (``retention``).
``marks`` tells the store the words about them, ``bring_back`` makes another one the
session's own, ``deletions`` removes what a deleted server has left. While the journal
does not agree with the store, only a person's order is enough to delete (law 9).
"""

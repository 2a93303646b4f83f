"""Keeps, orders and brings back checkpoints, and deletes expired ones.

``expiry`` deletes expired ones; until when each is kept is computed (``retention``
beside ``phase``). ``marks`` tells the store the words about them, ``bring_back`` makes
another one the session's own, and ``deletions`` removes what a deleted server has left.

A checkpoint that a session may still need is not deleted, and while the journal does
not agree with the store only a person's order is enough (law 9). An order to delete a
server is durable, repeated until nothing is left, and bound to the account that the
checkpoints belong to. A deletion that fails is tried again.

Read next: ``expiry``, then ``policy.retention`` for the administrator's limits.
"""

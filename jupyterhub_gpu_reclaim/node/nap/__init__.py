"""Notices what wakes a napping session, from outside of its stopped programs.

``messages`` tells messages that a person meant from a page's own. ``inputs`` finds what
a program could read from, and how much of it is unread. ``watch`` waits until something
wakes one session, and ``wakers`` does so for all sessions of the node.

Nothing is read that the program would read: unread data is looked at and left. What is
not understood wakes, since a nap that ends too early costs seconds, and one that does
not end costs the session. What a program does in its descriptors, and how much comes
there, is its user's word: all of it has limits.

Read next: ``watch``, then ``docs/explanation/nap.md``. How a nap begins and ends is in
``node/workflows/nap.py``.
"""

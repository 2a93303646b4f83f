"""Notices what wakes a napping session, from outside of its stopped programs.

Nothing is read that the program would read: unread data is peeked at. Anything that is
not understood wakes, since a nap that ends too early costs seconds, and one that does
not end costs the session. A program's descriptors and their data are its user's word:
all of it has limits.

Read next: ``watch``, then ``docs/explanation/nap.md``. How a nap begins and ends is in
``node/workflows/nap.py``.
"""

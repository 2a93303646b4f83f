"""The rehearsal: a tree's return is tried before the tree is ended (law 12).

``images`` keeps what a dump writes, without the memory; ``place`` makes an empty place
with namespaces of its own; ``rehearse`` restores the images there beside the tree that
stands, judges the result as a return is judged, and throws it away.

Nothing is continued and nothing of the user's is written to. What fails is an error of
the capture (``would_not_return``), which rolls back; the session goes on.

Read next: ``rehearse``, then ``docs/explanation/rehearsal.md``.
"""

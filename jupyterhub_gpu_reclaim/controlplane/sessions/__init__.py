"""Every session as it is now: its row, what is measured of it, and who sees it how.

``registry`` is the one place where rows change; whoever waits for a change is told by
``streams``.
"""

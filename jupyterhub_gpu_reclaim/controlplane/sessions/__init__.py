"""Every session as it is now: its row, its runtime state, and its views.

``registry`` moves rows through the phase table, and holds one ``runtime`` object for
each session, which one call forgets; ``streams`` tells readers of changes.
"""

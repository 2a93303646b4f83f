"""Every session as it is now: its row, its runtime state, and its views.

``registry`` moves rows through the phase table; ``streams`` tells readers of changes.
"""

"""Every session as it is now: its row, its runtime state, and its views.

``registry`` moves rows through the phase table, and holds one ``runtime`` object for
each session. ``views`` makes what pages and API show, ``streams`` tells readers of
changes. ``owners`` knows whose a session is; ``totals`` counts. A change is journalled
with its audit line, then told to readers.
"""

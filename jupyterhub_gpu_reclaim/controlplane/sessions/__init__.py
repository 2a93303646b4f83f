"""Every session as it is now: its row, its runtime state, and its views.

``registry`` moves rows through the phase table, and holds one ``runtime`` object for
each session, which one call forgets. ``views`` makes what pages and API show,
``streams`` tells readers of changes. ``owners`` knows whose a session is, whatever
its name; ``totals`` counts.

A change is journalled with its audit line, then told to readers; if the phase table or
the journal refuses, nothing is changed. Runtime state is found out again after a
restart. A reader that is too slow is dropped, and no decision depends on one.

Read next: ``registry``, then ``controlplane.journal``.
"""

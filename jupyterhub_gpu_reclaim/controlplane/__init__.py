"""Moves sessions between phases, durably: phases, journal, work queue, workers.

``phase`` computes what a session is now; ``settle`` compares that with agents and Hub,
and picks one action; a ``worker`` does it and looks again. ``suspend`` and ``resume``
are the long ones. ``decide`` asks the policy, ``retention`` says how long a checkpoint
is kept, ``people`` and ``plans`` answer people, programs and the spawner. A new phase
is in the journal before its effect begins, so a restart at any moment ends in RUNNING
or SUSPENDED (law 6). A part that does not answer is not taken to have nothing.

Read next: ``session`` and ``settle``, then ``docs/explanation/walks.md``.
"""

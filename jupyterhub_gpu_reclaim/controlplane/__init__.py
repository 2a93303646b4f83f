"""Moves sessions between phases, durably: phases, journal, work queue, reconciler.

``model`` is the vocabulary, ``journal`` the database, and ``sessions`` changes rows
through the phase table. ``phase`` computes what a session is now; ``loop`` compares
that with agents and Hub, and picks one action for each session; ``flows`` are the
long ones, suspend and resume. ``decide`` asks the policy, ``checkpoints`` says how long
a checkpoint is kept, and ``api`` answers people, programs and the spawner.

A new phase is in the journal, with its audit line, before its effect begins. So a
restart at any moment ends in RUNNING or SUSPENDED (law 6), and nothing is released
before its checkpoint is committed (law 1). A part that does not answer is not taken to
have nothing.

Read next: ``loop`` and ``model.phases``, then ``docs/explanation/walks.md``.
"""

"""Moves sessions between phases, durably: phases, journal, work queue, reconciler.

``phase`` computes what a session is now; ``loop`` compares that with agents and Hub,
and picks one action for each session; ``flows`` are the long ones, suspend and resume.
``decide`` asks the policy, ``retention`` says how long a checkpoint is kept, ``api``
answers people, programs and the spawner. A new phase is in the journal before its
effect begins, so a restart at any moment ends in RUNNING or SUSPENDED (law 6). A part
that does not answer is not taken to have nothing.

Read next: ``loop`` and ``model.phases``, then ``docs/explanation/walks.md``.
"""

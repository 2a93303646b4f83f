"""Decides whether to suspend a session, with a reason each time; pure functions.

``decide`` is given a frozen snapshot and the time, and asks ``guards`` first, then the
policies: ``idle`` and ``pressure``. One guard forbids; one policy is enough to ask.
``rules`` sets other thresholds for some sessions, and ``retention`` says which
checkpoints are kept no longer.

The same snapshot at the same time gets the same answer: no I/O, no clock, no memory of
earlier answers. The answer holds every reason, the deciding one first. A fact that is
not known is a reason against a suspend (law 5).

Read next: ``decide``, then ``docs/explanation/policy.md``. ``controlplane/decide``
makes the snapshots and acts on the answers.
"""

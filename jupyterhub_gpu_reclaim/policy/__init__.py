"""Decides whether to suspend a session, with a reason each time; pure functions.

``decide`` gets a frozen snapshot and the time, and asks ``guards`` first, then the
policies. One guard forbids; one policy is enough to ask.

The same snapshot at the same time gets the same answer: no I/O, no clock, no memory of
earlier answers. The answer has every reason, the deciding one first. An unknown fact is
a reason against a suspend (law 5). Read next: ``decide``, then
``docs/explanation/policy.md``. ``controlplane/decide`` makes the snapshots and acts on
the answers.
"""

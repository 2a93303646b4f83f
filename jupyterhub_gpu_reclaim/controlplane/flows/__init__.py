"""The long ways of a session: suspend and resume.

``suspend`` leads from a decision to a committed checkpoint and a released tree,
``resume`` from a placed init to a session that answers. ``taking`` writes into the row
what a session has been found to be, unless its end was ordered (``ending``).

Each step is in the journal before it is taken, so that a restarted service continues
from the last one (law 6). Nothing is ended before the commit (law 1). A failed suspend
goes back to RUNNING, a failed resume to SUSPENDED with its checkpoint. If an agent is
lost on the way (``Unreachable``), its operation may go on, and is attached to later.

Read next: ``suspend`` and ``resume``, then ``loop.reconciler``, which settles what was
left in the middle.
"""

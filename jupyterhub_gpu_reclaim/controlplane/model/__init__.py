"""The vocabulary of the control plane: phases, rows, accounting, and its interfaces.

``phases`` is the table of a session's life: phase and event to next phase. ``rows`` are
the values that the journal keeps, ``accounting`` counts GPU time and waiting,
``settings`` are the limits. ``interfaces`` says what the control plane asks of the Hub
and of the agents, and which calls may be repeated.

Data and pure functions. A step that is not in the table is refused (``wrong_phase``),
and the phases in which programs are ended can only be entered with a committed
checkpoint (``not_captured``): law 1 is enforced here.

Read next: ``phases``, then ``loop.reconciler`` and ``docs/explanation/laws.md``.
"""

"""The managers' pages: all sessions, the machines, the store.

``page`` lets managers in. ``overview`` is where they arrive: totals, and the
``table`` of all sessions, by card on demand (``card_groups``), with orders for many of
them (``bulk``). ``nodes`` are the machines and who holds what on their GPUs, ``store``
the checkpoints.

Everything works without scripts; those only keep a page up to date. What a button does
is the same call as in the API.

Read next: ``overview`` and ``table``, then ``docs/how-to/operate.md``.
"""

"""The event log: who did what to whose session, one line of JSON each, for machines.

``feed`` copies the journal's audit log, after a mark of its own; ``log`` writes each
line, checked against its schema.

No session waits for the log. A failed write is repeated later, in order; a crash may
repeat lines and loses none. Read next: ``feed``, then ``docs/reference/events.md``.
"""

"""The event log: who did what to whose session, one line of JSON each, for machines.

``feed`` copies the journal's audit log, after a mark of its own; ``log`` writes each
line, checked against its schema. Requests that were refused change nothing and are not
in the audit: they are written directly.

No session waits for the log. A failed write is repeated later, in order; a crash may
repeat lines and loses none. Only a refused request is lost when its write fails; that
is logged. Read next: ``feed``, then ``docs/reference/events.md``.
"""

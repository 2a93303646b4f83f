"""The database: sessions, checkpoints, the audit log, and the right to write to it.

``journal`` reads and writes the rows of ``schema``; ``cache`` holds sessions and
checkpoints in memory. ``lock`` keeps other services off, and the term says which one
works on it. A change and its audit line are one transaction. "What is durable, and
where" in ``docs/explanation/architecture.md`` lists the rest.
"""

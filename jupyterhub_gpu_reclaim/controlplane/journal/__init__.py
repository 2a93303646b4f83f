"""The database: sessions, checkpoints, the audit log, and the right to write to it.

``journal`` reads and writes the rows of ``schema``; ``cache`` holds sessions and
checkpoints in memory. ``audit_log`` gives each reader of the audit a mark of its own.
``lock`` keeps other services off, and the term says which one works on it.

A change and its audit line are one transaction: all of it or nothing. A database that
does not answer is ``StoreError``. One of another version is refused.

Read next: ``journal``, then "What is durable, and where" in
``docs/explanation/architecture.md``.
"""

"""The database: sessions, checkpoints, the audit log, and the right to write to it.

``journal`` reads and writes the rows of ``schema``; ``cache`` holds sessions and
checkpoints in memory. ``audit_log`` gives each reader of the audit a mark of its own.
``lease`` is the right to work on the journal, which one service at a time holds.

A change and its audit line are one transaction: all of it or nothing. Each write checks
the lease in its transaction, and each order to an agent or the Hub checks it first; a
lost lease is ``journal_held``, a database that does not answer ``StoreError``, and
nothing is ordered then. A database of another version is refused.

Read next: ``journal`` and ``lease``, then "What is durable, and where" in
``docs/explanation/architecture.md``.
"""

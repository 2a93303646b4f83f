"""The database: sessions, checkpoints, the audit log, and the right to write to it.

One service at a time holds the lease; each transaction checks it. Migrations only add.
"""

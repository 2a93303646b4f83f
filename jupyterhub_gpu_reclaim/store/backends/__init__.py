"""Backends that keep objects: a folder, S3, GCS, Azure.

Each passes one contract suite (``tests/contracts/test_backend.py``): an object becomes
visible whole, and what was reported as written survives a loss of power. A passing
fault is ``Unavailable`` and had no effect; every other failure is a ``StoreError``. An
object store's errors never hold its address or login.
"""

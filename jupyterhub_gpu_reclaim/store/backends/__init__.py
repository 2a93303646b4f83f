"""Backends that keep objects: a folder, S3, GCS, Azure.

``folder`` keeps files, and ``objects`` talks to object stores. ``proxies`` adds retries
and read-ahead. ``address`` opens any of them from a path, a URL or a ``spec``.

Each passes one contract suite (``tests/contracts/test_backend.py``): an object becomes
visible whole, and what was reported as written survives a loss of power. A passing
fault is ``Unavailable`` and had no effect; every other failure is a ``StoreError``. An
object store's errors never hold its address or login.

Read next: ``store/backend.py``, the interface, then ``folder``.
"""

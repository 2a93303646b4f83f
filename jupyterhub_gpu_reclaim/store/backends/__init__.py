"""Where objects are kept: a folder, S3, GCS, Azure, a folder as a write-back cache.

Each passes one contract suite (``tests/contracts/test_backend.py``); ``address`` opens
any of them.
"""

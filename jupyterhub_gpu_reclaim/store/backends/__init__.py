"""Where objects are kept: a folder, S3, GCS, Azure, two of them as tiers.

Each passes one contract suite (``tests/contracts/test_backend.py``); ``address`` opens
any of them.
"""

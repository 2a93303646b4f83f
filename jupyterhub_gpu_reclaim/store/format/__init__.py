"""The bytes of ``FORMAT.md``: keys, manifests, the index, compression, sealing.

Nearly all of it is pure. No block or index is parsed before it is authenticated, and of
a manifest only the head; lengths and numbers are checked all the same. Anything that is
not as it was written is ``CHECKPOINT_DAMAGED``; a missing key is ``KEY_MISSING``.

Read next: ``store/FORMAT.md``, then ``crypto`` and ``manifest``.
"""

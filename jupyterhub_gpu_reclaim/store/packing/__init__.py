"""Turns plain bytes into encrypted blocks and packs, without the known chunks.

Every block is read back and opened before the commit, unless the store was told not to.
If there is no room or no store, or a block reads back differently, the call raises
``StoreError`` and the pack writer is unusable: the checkpoint cannot be committed.

Read next: ``pack_writer``, then ``store/workers``, where many of them run, and
``docs/explanation/store.md``.
"""

"""Reads a committed checkpoint: every byte is authenticated before it is used.

``blocks`` finds the blocks of a range of a file and opens them. ``memory_restore``
plans which bytes go where, and copies them straight into stopped processes, each block
read once. ``subset`` names a part of a store for a verification in pieces.

What is damaged is ``CHECKPOINT_DAMAGED``, and nothing of that block is used; other
pieces may have been written by then, so the caller must not let the processes run on. A
process that has gone ends the copy with ``RESTORE_FAILED``.

Read next: ``blocks``, then ``store/checkpoint.py`` and walk 2 of
``docs/explanation/walks.md``.
"""

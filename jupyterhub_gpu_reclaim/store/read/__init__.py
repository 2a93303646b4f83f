"""Reads a committed checkpoint: every byte is authenticated before it is used.

Damage is ``CHECKPOINT_DAMAGED``, and nothing of that block is used; other pieces may
have been written by then, so the caller must not let the processes run on. A process
that has gone ends the copy with ``RESTORE_FAILED``.

Read next: ``blocks``, then ``store/checkpoint.py`` and walk 2 of
``docs/explanation/walks.md``.
"""

"""Lists committed checkpoints, and deletes objects that no checkpoint needs.

A checkpoint is committed exactly if its manifest exists. Deleting takes the manifest
first, and a pack stays while any manifest or write intent needs it, or while that is
unknown. So an interrupted deletion leaves remains for the next sweep, never a
checkpoint with a part missing. A manifest that cannot be read is logged and kept.

Read next: ``garbage`` and ``locks``, then the order of deleting in ``FORMAT.md``.
"""

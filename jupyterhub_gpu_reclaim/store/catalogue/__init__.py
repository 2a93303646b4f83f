"""Lists committed checkpoints, and deletes objects that no checkpoint needs.

``committed`` reads manifests and caches what they say. ``garbage`` removes a checkpoint
or the remains of one. ``locks`` are objects in the store by which processes tell each
other what they write or delete.

A checkpoint is committed exactly if its manifest stands. Deleting takes the manifest
first, and a pack stays while any manifest or write intent needs it, or while that is
not known. So a deletion that is interrupted leaves remains for the next sweep, never a
checkpoint with a part missing. A manifest that cannot be read is logged and kept.

Read next: ``garbage`` and ``locks``, then the order of deleting in ``FORMAT.md``.
"""

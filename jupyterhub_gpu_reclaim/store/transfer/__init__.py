"""Moves whole checkpoints: from the node's folder to the store, to a file, and back.

``upload`` brings what stands only in the node's folder to the store, in the background;
``eviction`` then frees the folder. ``export`` writes a checkpoint into one file, and
imports it from there.

Packs go first and the manifest last, so what is interrupted is no checkpoint at its
target, and is continued or swept. Nothing is dropped from the folder that was not seen
in the store with the right length. A file to import may be hostile: all of it is
authenticated before a byte of it is stored.

Read next: ``upload``, then ``store/backends/write_back.py``.
"""

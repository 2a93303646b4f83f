"""Moves whole checkpoints to a file, and back.

``export`` writes a checkpoint into one file, and imports it from there.

Packs go first and the manifest last, so what is interrupted is no checkpoint at its
target, and is continued or swept. A file to import may be hostile: all of it is
authenticated before a byte of it is stored.

Read next: ``export``.
"""

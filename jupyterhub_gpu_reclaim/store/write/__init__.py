"""Writes a checkpoint: begun, filled, and committed or discarded.

``builder`` removes remains of an earlier attempt, publishes the write intent and
chooses the base checkpoint, before the session is stopped. ``writer`` takes the files,
from many threads. ``commit`` makes one index of what all pack writers report, writes
it, and publishes the manifest.

The manifest comes last, after everything that it names was synced and read back, and is
read back itself (law 1). Before it stands there is no checkpoint: a writer that fails
removes what it has written, and what a crash leaves is removed by a later sweep.

Read next: ``writer`` and ``commit``, then the order of writing in ``FORMAT.md``.
"""

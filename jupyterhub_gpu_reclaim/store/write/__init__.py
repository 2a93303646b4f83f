"""Writes a checkpoint: begun, filled, and committed or discarded.

The manifest comes last, after everything that it names was synced and read back, and is
read back itself (law 1). Before it there is no checkpoint: a writer that fails removes
its objects, and those that a crash leaves are removed by a later sweep.

Read next: ``writer`` and ``commit``, then the order of writing in ``FORMAT.md``.
"""

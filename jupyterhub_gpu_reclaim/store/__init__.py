"""The checkpoint store: a checkpoint is committed, or it does not exist.

It keeps sessions' memory and files, deduplicated against the session's last generation,
compressed and encrypted, in a folder or an object store. Nothing is taken for a
checkpoint unless all of it was written, synced and read back, whatever dies meanwhile:
this process, its workers, the machine, another node.

``repository`` is the door. ``write`` and ``packing`` turn bytes into packs, ``workers``
do it in processes of their own; ``read`` brings them back. ``catalogue`` knows what is
committed, being written or being deleted. ``backends`` keep named bytes; ``format`` has
what stands in them.

Each failure is a ``StoreError`` with a reason; no contents are used before they were
authenticated. Read next: ``FORMAT.md``, then ``repository`` and
``docs/explanation/store.md``.
"""

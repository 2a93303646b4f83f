"""The checkpoint store: a checkpoint is committed, or it does not exist.

It keeps sessions' memory and files, deduplicated against the session's last
generation, compressed and encrypted, in a folder or an object store. Only what was
written, synced and read back in full counts as a checkpoint, whatever dies meanwhile:
this process, its workers, the machine, another node. No contents are used before they
were authenticated.

Each failure is a ``StoreError`` with a reason. Read next: ``FORMAT.md``, then
``repository``, the door, and ``docs/explanation/store.md``.
"""

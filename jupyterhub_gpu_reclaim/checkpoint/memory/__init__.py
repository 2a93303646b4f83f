"""Memory that does not go through CRIU: found in its images, filled afterwards.

CRIU fills a process in one thread. So ``plan`` takes large areas out of the images that
CRIU is given, and ``fill`` has them copied into the stopped processes by many workers.
What only CRIU can restore stays with it. ``undumpable`` closes the processes' memory to
their own user while root works in it, in a dump and in a restore. ``robust_lists`` lets
them end without a trace in the files that they have mapped.

Images are checked before anything is planned (``checkpoint_damaged``). A process that
has ended meanwhile, a copy that is late, or a cancel ends the restore: no process runs
on before all of its memory is there.

Read next: ``plan``, then ``docs/explanation/memory.md``. The copying itself is in
``store/read/memory_restore.py``.
"""

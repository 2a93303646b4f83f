"""Memory that does not go through CRIU: found in its images, filled afterwards.

CRIU fills a process in one thread. So ``plan`` takes large areas out of the images that
CRIU is given, and ``fill`` has them copied into the stopped processes by many workers.
What only CRIU can restore stays with it. ``robust_lists`` lets processes end without a
trace in the files that they have mapped.

No process runs on before all of its memory is there. Read next: ``plan``, then
``docs/explanation/memory.md``.
"""

"""Captures and restores process trees: CRIU, GPU memory, sockets and open files.

``kinds`` knows each kind of thing that a program can have: what is refused, what is
added to CRIU's images, and what is given back. ``preflight`` finds what prevents a
capture, ``tree`` freezes, dumps, restores and continues a tree through ``criu``,
``gpu`` and ``memory`` move what does not go through CRIU, and ``archive`` saves private
file systems.

A tree whose dump failed or was cancelled is thawed, and runs as before (law 2). A
restore that fails leaves nothing under the holding init. Read next: ``kinds``, then
``docs/explanation/criu.md``. The steps are put in order in ``node/workflows``.
"""

"""Captures and restores process trees: CRIU, GPU memory, sockets and open files.

``preflight`` finds what prevents a capture, and touches nothing. For a capture, ``gpu``
moves GPU memory into the processes, ``tree`` cuts connections, freezes the tree and
dumps it through ``criu``, and ``archive`` saves private file systems. For a restore,
``files`` opens what the tasks had open, ``tree`` makes the processes again, ``memory``
and ``gpu`` fill them, and ``sockets`` resets what does not come back.

Each module does one step; the caller orders the steps, and names where images go and
come from. A dump that fails or is cancelled leaves the tree running as before (law 2).
A restore that fails leaves nothing under the holding init.

Read next: ``tree``, then ``docs/explanation/criu.md``. The steps are put in order in
``node/workflows``.
"""

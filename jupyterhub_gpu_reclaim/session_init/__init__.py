"""Pid 1 of a session, and the program that gives a session its namespaces.

``launcher`` makes namespaces and control groups, and becomes the init,
``session_init``, which starts the session's programs or waits for a restore.

Init and launcher run as single files, in a container with the Python of the session's
image, so they import nothing of ours. The init is in no checkpoint and outlives the
Hub, not its session: when the session's root ends, it ends with the same status. A
launch that fails is reported as one sentence. Read next: ``session_init``, then "How a
session is found on a node" in ``docs/explanation/architecture.md``.
"""

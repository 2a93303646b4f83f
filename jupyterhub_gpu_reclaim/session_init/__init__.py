"""Pid 1 of a session, and the program that gives a session its namespaces.

``launcher`` makes namespaces and control groups, and becomes the init. ``session_init``
is that init: it starts the session's programs or waits for a restore, forwards signals,
and reaps. ``command_line`` writes an init's command line, and recognises it by that;
``container_labels`` say whose a container of Docker is.

Init and launcher run as single files, in a container with the Python of the session's
image, so they import nothing of ours. What outsiders rely on stands once: the init's
name, signals, descriptors and exit codes in ``session_init``. The init is in no
checkpoint and outlives the Hub, not its session: when the session's root ends, it ends
with the same status. A launch that fails is reported as one sentence.

Read next: ``session_init``, then "How a session is found on a node" in
``docs/explanation/architecture.md``.
"""

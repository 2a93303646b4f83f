"""Pid 1 of a session, and the program that gives a session its namespaces.

Both run as single files with the Python of the session's own image, so they import
nothing of ours. What outsiders rely on stands once: the init's name, signals,
descriptors and exit codes in ``session_init``, its command line in ``command_line``.
"""

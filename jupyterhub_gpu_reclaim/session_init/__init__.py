"""Pid 1 of a session, and the program that gives a session its namespaces.

Both run as single files with the Python of the session's own image, so they import
nothing of ours. ``hub.local`` and ``hub.kube`` start them; ``node`` and ``checkpoint``
talk to them.
"""

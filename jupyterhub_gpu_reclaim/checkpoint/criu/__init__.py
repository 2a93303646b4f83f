"""CRIU itself: found or installed, run inside a session, its images as streams.

CRIU never holds a descriptor from which the agent's file system can be reached
(``namespaces``), and each run has a time limit.
"""

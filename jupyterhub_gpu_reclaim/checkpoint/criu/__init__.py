"""CRIU itself: found or installed, run inside a session, its images as streams.

``binary`` finds CRIU and checks it; ``install`` makes a private copy of Debian's
packages. ``process`` is one run: ``namespaces`` starts it inside the session's
namespaces through the helper ``nsenter``, and ``stream`` carries its image files.
``images`` reads and rewrites the few messages of them that concern us.

CRIU never holds a descriptor from which the agent's file system can be reached
(``namespaces``), and each run has a time limit. A run that is late, cancelled or broken
loses its stream first, so that CRIU itself undoes what it did to the session; it is
killed only if it does not end then. The error quotes CRIU's first complaint.

Read next: ``process``, then ``docs/explanation/criu.md``.
"""

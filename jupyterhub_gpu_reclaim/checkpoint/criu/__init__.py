"""CRIU itself: found or installed, run inside a session, its images as streams.

``binary`` finds and checks it; ``install`` makes a private copy of Debian's packages.
``process`` is one run: ``namespaces`` starts it inside the session's namespaces through
the helper ``nsenter``, and ``stream`` carries its image files, of which ``images``
reads and rewrites the few messages that concern us.

A run that is late, cancelled or broken loses its stream first, so that CRIU itself
undoes what it did to the session; it is killed only if it does not end then. The error
quotes CRIU's first complaint. Read next: ``process``, ``docs/explanation/criu.md``.
"""

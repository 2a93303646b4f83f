"""Sockets: what is cut, and which ports and names a session needs again.

A TCP connection with both ends in the tree is the session's own and comes back with its
data in flight. Every other connection leads outside: ``inet`` cuts it at the capture
and rewrites CRIU's image, which decides: what the cut has missed does not come back
either. ``listeners`` keeps what was cut off from coming back at once. ``held`` keeps
the ports of suspended sessions, ``ports`` and ``abstract_names`` find what is taken.

Read next: ``inet``, then ``docs/explanation/criu.md``. ``tree.quiesce`` cuts without
losing output.
"""

"""Sockets: what can be saved, what is cut, and which ports a session needs again.

A TCP connection with both ends in the tree is the session's own and comes back with its
data in flight. Every other connection leads outside: ``inet`` cuts it at the capture
and rewrites CRIU's image, and ``resets`` makes it report a reset after the restore.
``unsent`` gives the session's own connections back what they had not sent yet.
``listeners`` keeps those who were cut off from coming back at once.
``ports`` reserves the ports of suspended sessions and checks that they are free.

The rewritten image decides: a connection that the cut has missed does not come back
either. Reservations may be repeated and survive a crash or a reboot. A port that is in
use is reported as a finding before a restore touches anything.

Read next: ``inet``, then ``docs/explanation/criu.md``. ``tree.quiesce`` cuts without
losing output.
"""

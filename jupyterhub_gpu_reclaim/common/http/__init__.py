"""HTTP between our own programs, over unix sockets and TCP.

Every call has a time limit; without an answer it ends in ``Unreachable``, with the
connection's reason. Nothing is retried. A request that is being answered is never cut
off. Read next: ``client``, then ``server``.
"""

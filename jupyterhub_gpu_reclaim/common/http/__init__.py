"""HTTP between our own programs, over unix sockets and TCP.

Every call has a time limit; without an answer it ends in ``NoResponse``, which each
caller turns into its own error. Nothing is retried. A request that is being answered
is never cut off. Read next: ``client``, then ``server``.
"""

"""HTTP between our own programs, over unix sockets and TCP.

``client`` is tornado's client with unix sockets, whose listeners it checks, limits, and
errors of our own. ``server`` is tornado's, protected against callers that never finish
their request.

Every call has a time limit; without an answer it ends in ``NoResponse``, which each
caller turns into its own error. Nothing is retried. A request that is being answered
is never cut off.

Read next: ``client``, then ``server``.
"""

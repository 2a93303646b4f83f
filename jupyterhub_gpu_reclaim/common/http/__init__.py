"""HTTP between our own programs, over unix sockets and TCP.

``client`` is tornado's client with a resolver for unix sockets, limits, and errors of
our own; ``proven_client`` adds the handshake, for a far part that must prove itself
before it is sent anything. ``server`` is tornado's, protected against callers that
never finish their request.

Every call has a time limit; without an answer it ends in ``NoResponse``, which each
caller turns into its own error. Nothing is retried, except that ``proven_client`` asks
once more when the far part has been started again. A request that is being answered is
never cut off.

Read next: ``client`` and ``proven_client``, then ``common/auth/handshake.py``.
"""

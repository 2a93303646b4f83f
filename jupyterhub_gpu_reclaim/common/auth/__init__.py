"""Proofs of identity between our own programs, and the names that the audit uses.

``handshake`` lets spawner, service and agents prove a secret to each other;
``tab_tokens`` lets an open tab speak for its own session. ``principals`` writes the
acting person or program as a text that no user name can imitate; ``scopes`` lists the
Hub scopes that the service and its users need.

Over plain HTTP the shared secrets are never sent, and an answer without its proof
counts as none. A tab token is worth as much as access to the session's own server, and
no more.

Read next: ``handshake``, then ``docs/explanation/security.md`` and ``tab.md``.
"""

"""Keys of open tabs, Hub scopes, and the names that the audit uses.

``tab_tokens`` lets an open tab speak for its own session. ``principals`` writes the
acting person or program as a text that no user name can imitate; ``scopes`` lists the
Hub scopes that the service and its users need.

A tab token is worth as much as access to the session's own server, and no more.

Read next: ``tab_tokens``, then ``docs/explanation/security.md`` and ``tab.md``.
"""

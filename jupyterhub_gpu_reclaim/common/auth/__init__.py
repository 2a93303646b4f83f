"""Keys of open tabs, Hub scopes, and the names that the audit uses.

A tab token is worth as much as access to the session's own server, and no more.
Read next: ``tab_tokens``, then ``docs/explanation/security.md`` and ``tab.md``.
"""

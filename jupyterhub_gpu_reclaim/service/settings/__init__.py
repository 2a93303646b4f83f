"""Every setting of the service, checked before anything acts on it.

A mistake is a sentence for the administrator, never a traceback, and no value that
could be a secret is repeated. Nothing is done with settings that have one: the Hub
runs, and every session is left alone (law 10).

Read next: ``options`` and ``validation``, then ``docs/reference/settings.md``.
"""

"""Every setting of the service, checked before anything acts on it.

``options`` has the traits, with unit, effect and the meaning of 0 or empty;
``environment`` has what the Hub passes at the start. ``validation`` checks names, types
and bounds, and ``placement`` makes the agent's client, or the router of a cluster, of
them.

A mistake is a sentence for the administrator, never a traceback, and no value that
could be a secret is repeated. Nothing is done with settings that have one: the Hub
runs, and every session is left alone (law 10).

Read next: ``options`` and ``validation``, then ``docs/reference/settings.md``.
"""

"""The process tree: frozen, dumped, restored, compared, continued.

``quiesce`` drains the server's output and cuts connections, ``freeze`` stops everything
in the session's pid namespace, ``dump`` streams the tree out. ``restore`` makes it
again under a holding init, fills its memory and lets it continue.

After a dump, be it a failed one, the tree stays stopped until it is released or thawed
(``freeze.thaw``), and then runs as before (law 2). A restored tree is stopped
until ``inspection`` has compared each descriptor and mapping with what was opened for
it (law 8). Read next: ``dump``, then walk 2 of ``docs/explanation/walks.md``.
"""

"""The code that runs in the Hub's process: its configuration, the spawners, the pages.

``config.configure`` is all that a ``jupyterhub_config.py`` calls. ``spawner`` makes
sessions suspendable; ``local``, ``docker``, ``kube`` and ``tljh`` place them.

No mistake in a setting and no failure of the service ends the Hub (law 10): mistakes
are logged and shown on the service's page, and until they are corrected every session
is left alone. Nothing here imports the node's side, or the control plane directly.
Read next: ``config``, ``spawner``, then walk 5 of
``docs/explanation/walks.md``.
"""

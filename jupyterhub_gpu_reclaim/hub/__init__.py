"""The code that runs in the Hub's process: its configuration, the spawners, the pages.

``config.configure`` is all that a ``jupyterhub_config.py`` calls; ``config_check``
judges its arguments. ``spawner`` makes sessions suspendable, ``local``,
``docker`` and ``kube`` place them as processes, in containers or pods, ``tljh`` is all
that for The Littlest JupyterHub, and ``client`` asks the service. ``templates`` extends
the Hub's own pages.

No mistake in a setting (without ``strict``) and no failure of the service ends the Hub
(law 10): mistakes are logged and shown on the service's page, and until they are
corrected every session is left alone. Nothing here imports the node's side, or the
control plane directly.

Read next: ``config`` and ``spawner``, then walk 5 of ``docs/explanation/walks.md``.
"""

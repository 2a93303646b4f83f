"""The command ``jupyterhub-gpu-reclaim``: sessions, the store, CRIU, configuration.

``main`` reads the arguments. ``sessions`` asks the service, with the token of the
person at the terminal (``client``); ``store`` opens the store on a node; ``criu``
installs and checks CRIU; ``config`` checks a ``jupyterhub_config.py``. ``output``
prints tables, JSON and progress.

``sessions`` can do no more than its person may in the API. A failure is a sentence with
its code on the standard error output, and an exit code; never a traceback (law 7).

Read next: ``main``, then ``docs/reference/commands.md``.
"""

"""The command ``jupyterhub-gpu-reclaim``: sessions, the store, CRIU, configuration.

``sessions`` can do no more than its person may in the API. A failure is a sentence with
its code on the standard error output, and an exit code; never a traceback (law 7).

Read next: ``main``, then ``docs/reference/commands.md``.
"""

"""The spawner mixin, and the lifecycle of a session behind it.

JupyterHub calls ``mixin``; each call goes on to ``lifecycle``, which asks the service
and orders the steps. A spawner fills in ``placement``: start, find, end.

The record in the Hub's database (``state``) is written before each step, so a Hub that
is killed in between neither loses nor doubles a session (law 6). Without the service's
answer, a session that may have a checkpoint is not started cold (law 4); the start ends
in a ``refusal``, with a page on which the person chooses. Read next: ``lifecycle``,
``docs/reference/jupyterhub-traps.md`` and walk 3 of ``docs/explanation/walks.md``.
"""

"""The spawner mixin, and the lifecycle of a session behind it.

JupyterHub calls ``mixin.py``; each call goes on to ``lifecycle.py``, which asks the
service and orders the steps. A spawner fills in ``placement.py``: start, find, end.
Guarantee: what the Hub's database remembers (``state.py``) is written before each step,
so a Hub that is killed in between neither loses nor doubles a session.
"""

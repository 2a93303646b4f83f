"""Give idle GPUs of a JupyterHub back to the pool, and keep every session.

See ``docs/explanation/architecture.md`` for the rooms and which way data flows. "Law 5"
in a comment is the fifth of ``docs/explanation/laws.md``; "T8" or "trap T8" is a row of
``docs/reference/jupyterhub-traps.md``.
"""

__version__ = "0.1.0.dev0"

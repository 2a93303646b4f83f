"""Give idle GPUs of a JupyterHub back to the pool, and keep every session.

See ``docs/explanation/architecture.md`` for the parts and which way data flows.
"""

__version__ = "0.1.0.dev0"

"""Give idle GPUs of a JupyterHub back to the pool, and keep every session.

An idle session is suspended: its processes and their GPU memory are written into a
checkpoint and ended. When its user returns, the checkpoint is restored. Three programs
share the work: the spawner in the Hub's process (``hub``), the service with policy and
control plane (``service``), and the agent on each node (``node``).

"Law 5" in a comment is the fifth of ``docs/explanation/laws.md``, which lists what is
guaranteed; "T8" or "trap T8" is a row of ``docs/reference/jupyterhub-traps.md``.

Read next: ``docs/explanation/architecture.md`` for the rooms and which way data flows,
then ``walks.md`` beside it.
"""


def __getattr__(name: str) -> str:
    """``__version__``: that of the tag, as the installed package says it."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import version  # noqa: PLC0415 - 15 ms, which few need

    return version("jupyterhub-gpu-reclaim")

"""A process that is killed while it works on a store."""

from __future__ import annotations

from jupyterhub_gpu_reclaim.store.backends.proxies import BackendProxy


class Died(Exception):
    """The process was killed: whoever catches this cheats."""


class DiesAt(BackendProxy):
    """A backend whose process is killed before its n-th call, and stays dead.

    Args:
        backend: what the dead process leaves behind.
        mortal: shared by all backends of the process: calls made, and the fatal one.
    """

    def __init__(self, backend, mortal) -> None:
        def call(work):
            mortal["calls"] += 1
            if mortal["calls"] >= mortal["dies_at"] > 0:
                raise Died
            return work()

        super().__init__(backend, call)

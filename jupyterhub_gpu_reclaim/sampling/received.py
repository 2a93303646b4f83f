"""Counts what the servers of sessions receive: uploads, before anything is written.

A server keeps a body in memory until it is complete, so an upload of a minute leaves no
trace in its processes until its end. The kernel counts what each connection has
received; a connection that opens and closes between two looks is not seen, but what
such small requests bring is written soon, and counted there (``process_tree``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.linux.sock_diag import received_bytes

if TYPE_CHECKING:
    from collections.abc import Collection

    from jupyterhub_gpu_reclaim.sampling.jupyter_api import ServerAddress


class ReceivedBytes:
    """One growing count for each session, from the first look at it on."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._connections: dict[str, dict[bytes, int]] = {}

    def look(self, incarnation: str, address: ServerAddress) -> int:
        """What its server has received since the first look, in bytes.

        Args:
            incarnation: of the session.
            address: of its server.

        Raises:
            OSError: its network is gone.
            Refused: the kernel does not tell.
        """
        now = received_bytes(address.pid, address.port)
        before = self._connections.get(incarnation)
        count = self._counts.get(incarnation, 0)
        if before is not None:
            count += sum(max(0, size - before.get(one, 0)) for one, size in now.items())
        self._connections[incarnation], self._counts[incarnation] = now, count
        return count

    def keep(self, incarnations: Collection[str]) -> None:
        """Forget all others."""
        for known in (self._connections, self._counts):
            for one in known.keys() - set(incarnations):
                del known[one]

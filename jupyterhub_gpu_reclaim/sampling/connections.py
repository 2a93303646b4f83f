"""Looks at the TCP connections of sessions: what servers receive, who is connected.

A server keeps an upload in memory until it is complete, so one of a minute leaves no
trace in its processes until its end. The kernel counts what each connection has
received; a connection that opens and closes between two looks is not seen, but what
such small requests bring is written soon, and counted there (``process_tree``).

A suspend ends the connections to other machines of what runs in the session (a
database, a login by ssh, the workers of a cluster), so those are told. The server's own
are not: it is called by the Hub's proxy, and calls the Hub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.sock_diag import connections, own_addresses

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from jupyterhub_gpu_reclaim.linux.sock_diag import TcpConnection

#: Other machines that a sample names; whoever is connected to more is not idle either.
MAX_NAMED = 8


class Traffic(NamedTuple):
    """What the connections of one session tell."""

    received: int  #: bytes that its server was sent since the first look
    outside: list[str]  #: other ends of its programs' connections to other machines


class Connections:
    """Looks at the connections of sessions, and counts what servers receive."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._received: dict[str, dict[bytes, int]] = {}

    def look(
        self, incarnation: str, init_pid: int, port: int, programs: Collection[int]
    ) -> Traffic:
        """What is known now.

        Args:
            incarnation: of the session.
            init_pid: host pid of its init, in whose network it lives.
            port: of its server.
            programs: host pids of all its processes but the server.

        Raises:
            OSError: its network is gone.
            Refused: the kernel does not tell.
        """
        every = connections(init_pid)
        calls = {one.key: one.received for one in every if one.local.port == port}
        others = [one for one in every if one.local.port != port]
        return Traffic(
            self._count(incarnation, calls), _outside(init_pid, others, programs)
        )

    def keep(self, incarnations: Collection[str]) -> None:
        """Forget all others."""
        for known in (self._received, self._counts):
            for one in known.keys() - set(incarnations):
                del known[one]

    def _count(self, incarnation: str, now: dict[bytes, int]) -> int:
        before = self._received.get(incarnation)
        count = self._counts.get(incarnation, 0)
        if before is not None:
            count += sum(max(0, size - before.get(one, 0)) for one, size in now.items())
        self._received[incarnation], self._counts[incarnation] = now, count
        return count


def _outside(
    init_pid: int, every: Iterable[TcpConnection], programs: Collection[int]
) -> list[str]:
    """The other ends of those that lead to other machines, by address and port."""
    far = [one for one in every if not one.remote.address.is_loopback]
    if not far:
        return []
    here, mine = own_addresses(init_pid), _sockets(programs)
    found = {
        str(one.remote)
        for one in far
        if one.remote.address not in here and one.inode in mine
    }
    return sorted(found)[:MAX_NAMED]


def _sockets(pids: Iterable[int]) -> frozenset[int]:
    """The inodes of all sockets that these processes have open."""
    targets = (each.target for pid in pids for each in procfs.descriptors(pid))
    return frozenset(
        int(target[8:-1]) for target in targets if target.startswith("socket:[")
    )

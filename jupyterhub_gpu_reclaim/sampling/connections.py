"""Looks at the TCP connections of sessions: what moves on them, and who is connected.

What a program sends or receives leaves no trace in its processes: a server keeps an
upload in memory until it is complete, and what goes into a socket is often not counted
as written. The kernel counts what each connection has carried. One that opens and
closes between two looks is not seen, but what such small requests bring is written
soon, and counted there (``process_tree``).

A page of a program behind the server (VS Code, RStudio, Streamlit) reaches the program
by a connection from the server. What comes to the program there was sent by the page:
little while nobody looks at it, and more when somebody types or clicks. What kernels
are sent is left out, since their server tells of it. What goes through a UNIX socket,
which counts nothing, and single requests, which are over before the next look, the
server tells of where our extension is installed (``lab/program_pages.py``).

A suspend ends the connections to other machines of what runs in the session (a
database, a login by ssh, the workers of a cluster), so those are told. The server's own
are not: it is called by the Hub's proxy, and calls the Hub.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.sock_diag import connections, own_addresses

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from jupyterhub_gpu_reclaim.linux.sock_diag import TcpConnection
    from jupyterhub_gpu_reclaim.sampling.sampler import SampleTarget

#: Other machines that a sample names; whoever is connected to more is not idle either.
MAX_NAMED = 8
#: Bytes a second; a page that is open asks for less.
SLOWEST_DOWNLOAD = 5_000.0
#: Seconds that a page may load for.
LOADING_SECONDS = 20.0
#: Seconds without data after which another download begins.
PAUSE_SECONDS = 25.0


class Traffic(NamedTuple):
    """What the connections of one session tell."""

    #: bytes since the first look that its server was sent, that it sent for long and
    #: had not just fetched from a program, and that programs exchanged with other
    #: machines
    moved: int
    paged: int  #: bytes since then that programs were sent by pages behind the server
    outside: list[str]  #: other ends of its programs' connections to other machines


@dataclass(slots=True)
class _Lasting:
    """What a server sends for long is a download; what a page loads at once is none."""

    at: float  #: the last look
    since: float = 0.0  #: it has been sending since then
    until: float = 0.0  #: and was last seen to

    def counted(self, now: float, sent: int) -> int:
        """How much of what it has sent since the last look counts."""
        seconds, self.at = now - self.at, now
        if sent <= SLOWEST_DOWNLOAD * seconds:
            return 0
        if now - self.until > PAUSE_SECONDS:
            self.since = now
        self.until = now
        return sent if now - self.since >= LOADING_SECONDS else 0


@dataclass(slots=True)
class _Known:
    """What was seen of one session so far."""

    lasting: _Lasting
    before: dict[bytes, TcpConnection] | None = None
    moved: int = 0
    paged: int = 0


@dataclass(slots=True)
class _Session:
    """The connections of one session, by what they are for."""

    calls: list[TcpConnection] = field(default_factory=list)  #: to its server
    fetches: list[TcpConnection] = field(default_factory=list)  #: by it, to programs
    pages: list[TcpConnection] = field(default_factory=list)  #: their other ends
    outside: list[TcpConnection] = field(default_factory=list)  #: of its programs


class Connections:
    """Looks at the connections of sessions, and counts what they carry."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def look(self, target: SampleTarget, port: int, now: float) -> Traffic:
        """What is known of a session.

        Args:
            target: the session.
            port: of its server.
            now: seconds since the epoch.

        Raises:
            OSError: its network is gone.
            Refused: the kernel does not tell.
        """
        every = connections(target.init_pid)
        mine = _sorted(every, target, port)
        known = self._known.setdefault(target.incarnation, _Known(_Lasting(now)))
        if known.before is not None:
            came, went = _carried(mine.calls, known.before)
            fetched, _ = _carried(mine.fetches, known.before)
            known.moved += came + known.lasting.counted(now, went - fetched)
            known.moved += sum(_carried(mine.outside, known.before))
            known.paged += _carried(mine.pages, known.before)[0]
        known.before = {one.key: one for one in every}
        others = sorted({str(one.remote) for one in mine.outside})
        return Traffic(known.moved, known.paged, others[:MAX_NAMED])

    def keep(self, incarnations: Collection[str]) -> None:
        """Forget all others."""
        for one in self._known.keys() - set(incarnations):
            del self._known[one]


def _sorted(every: list[TcpConnection], target: SampleTarget, port: int) -> _Session:
    mine = _Session([one for one in every if one.local.port == port])
    others = [one for one in every if port not in {one.local.port, one.remote.port}]
    here = own_addresses(target.init_pid)
    own = _sockets([target.root_pid])
    owned = _sockets(pid for pid in target.pids if pid != target.root_pid)
    shown = owned - _sockets(one.pids[0] for one in target.kernels.values())
    ends = {(one.local, one.remote): one for one in others}
    for one in others:
        is_here = one.remote.address.is_loopback or one.remote.address in here
        if one.inode in owned and not is_here:
            mine.outside.append(one)
        elif one.inode in own and is_here:
            mine.fetches.append(one)
            end = ends.get((one.remote, one.local))
            if end is not None and end.inode in shown:
                mine.pages.append(end)
    return mine


def _carried(
    mine: Iterable[TcpConnection], before: dict[bytes, TcpConnection]
) -> tuple[int, int]:
    """Bytes that have come, and gone, since the last look."""
    came = went = 0
    for one in mine:
        known = before.get(one.key)
        came += max(0, one.received - (known.received if known else 0))
        went += max(0, one.sent - (known.sent if known else 0))
    return came, went


def _sockets(pids: Iterable[int]) -> frozenset[int]:
    """The inodes of all sockets that these processes have open."""
    targets = (each.target for pid in pids for each in procfs.descriptors(pid))
    return frozenset(
        int(target[8:-1]) for target in targets if target.startswith("socket:[")
    )

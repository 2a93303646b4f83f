"""The TCP connections of sessions: what moves on them, and who is connected.

Sending and receiving leave no trace in a process, and are often not counted as written;
but the kernel counts what each connection has carried. One that opens and closes
between two looks is not seen, but what such small requests bring is written soon, and
counted there (``process_tree``).

A page of a program behind the server (VS Code, RStudio, Streamlit) reaches it by a
connection from the server. A suspend ends the connections to other machines of the
session's programs, so those are reported. The server's own are not: the Hub's proxy
calls it, and it calls the Hub.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.sock_diag import Diag, own_addresses

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from jupyterhub_gpu_reclaim.linux.sock_diag import Address, Endpoint, InetSocket
    from jupyterhub_gpu_reclaim.sampling.process_tree import SampleTarget

#: Most open files of a session that are looked at; with more, it is not known.
MAX_FILES = 16_384
#: Most other machines named in a sample; with more, a session is not idle either.
MAX_NAMED = 8


class Traffic(NamedTuple):
    #: bytes since the first look that its server was sent, that it sent (but not what
    #: it fetched from a program), and that programs exchanged with other machines
    moved: int
    paged: int  #: bytes since the first look that pages sent to programs
    outside: list[str]  #: other ends of its programs' connections to other machines


@dataclass(slots=True)
class _Known:
    before: dict[bytes, InetSocket] | None = None  #: its connections at the last look
    moved: int = 0
    paged: int = 0


@dataclass(slots=True)
class _Session:
    calls: list[InetSocket] = field(default_factory=list)  #: to its server
    fetches: list[InetSocket] = field(default_factory=list)  #: by it, to programs
    pages: list[InetSocket] = field(default_factory=list)  #: their other ends
    #: of its programs, to others
    outside: list[InetSocket] = field(default_factory=list)


class _Held(NamedTuple):
    server: set[int]
    programs: set[int]
    kernels: set[int]


class _Network(NamedTuple):
    by_inode: Mapping[int, InetSocket]
    by_ends: Mapping[tuple[Endpoint, Endpoint], InetSocket]
    addresses: Collection[Address]


class Connections:
    # On one machine all sessions are in one network namespace, so its connections are
    # read once for all of them, and only the sessions' own are kept. A session with
    # very many files open is unknown, and costs the others nothing.

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def look(self, targets: Sequence[SampleTarget]) -> dict[str, Traffic]:
        """By incarnation; those that have too many files open are left out.

        Raises:
            OSError: their network is gone.
            Refused: the kernel does not answer.
        """
        opened = [(target, _open_sockets(target)) for target in targets]
        known = [(target, held) for target, held in opened if held is not None]
        inodes = {n for _, held in known for n in held.server | held.programs}
        with Diag(targets[0].init_pid) as diag:
            every = diag.connections(inodes)
        network = _Network(
            {each.inode: each for each in every},
            {(each.local, each.remote): each for each in every},
            own_addresses(targets[0].init_pid),
        )
        return {
            target.incarnation: self._count(target, held, network)
            for target, held in known
        }

    def _count(self, target: SampleTarget, held: _Held, network: _Network) -> Traffic:
        port = target.address.port if target.address is not None else 0
        mine = _sort_by_purpose(held, port, network)
        known = self._known.setdefault(target.incarnation, _Known())
        if known.before is not None:
            came, went = _bytes_carried(mine.calls, known.before)
            fetched, _ = _bytes_carried(mine.fetches, known.before)
            known.moved += came + max(0, went - fetched)
            known.moved += sum(_bytes_carried(mine.outside, known.before))
            known.paged += _bytes_carried(mine.pages, known.before)[0]
        every = (*mine.calls, *mine.fetches, *mine.pages, *mine.outside)
        known.before = {one.key: one for one in every}
        others = sorted({str(one.remote) for one in mine.outside})
        return Traffic(known.moved, known.paged, others[:MAX_NAMED])

    def keep(self, incarnations: Collection[str]) -> None:
        for one in self._known.keys() - set(incarnations):
            del self._known[one]


def _sort_by_purpose(held: _Held, port: int, network: _Network) -> _Session:
    # Data to a program's page connection comes from its page: little while it is
    # unattended, and more when somebody types or clicks. Kernels are left out, since
    # their server tells of them. UNIX sockets, which count nothing, and single
    # requests, which are over before the next look, are told by our extension
    # (lab/status.py).
    mine, shown = _Session(), held.programs - held.kernels
    for inode in held.server | held.programs:
        connection = network.by_inode.get(inode)
        if connection is None:
            continue
        address = connection.remote.address
        is_here = address.is_loopback or address in network.addresses
        if connection.local.port == port:
            mine.calls.append(connection)
        elif connection.remote.port == port:
            continue
        elif inode in held.programs and not is_here:
            mine.outside.append(connection)
        elif inode in held.server and is_here:
            mine.fetches.append(connection)
            end = network.by_ends.get((connection.remote, connection.local))
            if end is not None and end.inode in shown:
                mine.pages.append(end)
    return mine


def _bytes_carried(
    mine: Iterable[InetSocket], before: Mapping[bytes, InetSocket]
) -> tuple[int, int]:
    came = went = 0
    for connection in mine:
        last = before.get(connection.key)
        came += max(0, connection.received - (last.received if last else 0))
        went += max(0, connection.sent - (last.sent if last else 0))
    return came, went


def _open_sockets(target: SampleTarget) -> _Held | None:
    """The inodes of its sockets; None if more files are open than are looked at."""
    left = MAX_FILES
    found = _Held(set(), set(), set())
    for pid in {target.root_pid, *target.pids}:
        for each in procfs.descriptors(pid):
            if not left:
                return None
            left -= 1
            if each.target.startswith("socket:["):
                inode = int(each.target[8:-1])
                its = found.server if pid == target.root_pid else found.programs
                its.add(inode)
                if pid in target.kernels:
                    found.kernels.add(inode)
    return found

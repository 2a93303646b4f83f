"""Tells what is in the way of the ports and connections of a session that comes back.

While it is suspended the agent holds its ports (``held``), which keeps root from
nothing. What took one while no agent was there is found here, before anything is
touched.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import Link, Port
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import netns, procfs
from jupyterhub_gpu_reclaim.linux.sock_diag import Diag, TcpState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.sock_diag import InetSocket

_PROTOCOLS: Final = {6: "tcp", 17: "udp"}
_LOOK_AGAIN: Final = 0.1  # seconds
#: Of what is in the way so many are told: a user may have thousands taken, and for each
#: all programs of the machine are looked at.
MOST_TOLD: Final = 8
_SOMEBODY: Final = "another program of that machine"

_log = logging.getLogger(__name__)


def await_free(
    init_pid: int,
    ports: Iterable[Port],
    connections: Collection[Link] = (),
    *,
    seconds: float,
    uid: int | None = None,
) -> list[Finding]:
    """Wait until nothing is in the way of a restore under that init, or time is up.

    One finding per port, of some, sorted; an empty list is good. A port that must be
    bound is tried, as CRIU will bind it; a connection is in the way of the very same
    one only (same addresses and ports), of whatever state. What is in the way is most
    often short-lived: another program's own connection, to which the kernel has given
    the same number. What has ended and no program has any more is removed. Only
    programs of ``uid`` are named to the session's user; None names all.
    """
    ports, deadline = list(ports), time.monotonic() + seconds
    while True:
        _remove_ended(init_pid, ports, connections)
        found = _taken(init_pid, ports, connections)
        if not found or time.monotonic() >= deadline:
            return _told(found, uid)
        time.sleep(_LOOK_AGAIN)  # the kernel has no event for a port that is free again


def _taken(
    init_pid: int, ports: Iterable[Port], connections: Collection[Link]
) -> dict[int, list[InetSocket]]:
    with Diag(init_pid) as diag:
        there = diag.sockets()
    taken = (port for port in ports if _is_taken(init_pid, port))
    met = (one for one in there if Link.of(one) in connections)
    found = {port.port: _on(port, there) for port in islice(taken, MOST_TOLD)}
    return found | {one.local.port: [one] for one in islice(met, MOST_TOLD)}


def _told(
    taken: Mapping[int, Collection[InetSocket]], uid: int | None
) -> list[Finding]:
    return [
        finding(Reason.PORT_IN_USE, port=port, holder=_holder(found, uid))
        for port, found in sorted(taken.items())
    ]


def _remove_ended(
    init_pid: int, ports: Collection[Port], connections: Collection[Link]
) -> None:
    """End what stands on those ports and connections although no program has it."""
    numbers = {port.port for port in ports if port.protocol == "tcp"}
    with Diag(init_pid) as diag:
        for one in diag.sockets({0}):
            is_there = one.local.port in numbers or (Link.of(one) in connections)
            if is_there and _has_ended(one):
                diag.destroy(one)


def _has_ended(one: InetSocket) -> bool:
    is_tcp = one.protocol == socket.IPPROTO_TCP
    return is_tcp and one.inode == 0 and one.state in inet.ENDING


def _is_taken(init_pid: int, port: Port) -> bool:
    """Whether the kernel refuses that port to a program that is as lenient as CRIU."""
    try:
        with netns.make_socket(init_pid, port.family, port.kind) as probe:
            port.bind(probe, lenient=True)
    except OSError as error:
        # Anything else is no matter of another program, and CRIU will say it.
        return error.errno == errno.EADDRINUSE
    return False


def _on(port: Port, there: Iterable[InetSocket]) -> list[InetSocket]:
    on = [
        one
        for one in there
        if one.local.port == port.port and _PROTOCOLS[one.protocol] == port.protocol
    ]
    on.sort(key=lambda one: one.state is not TcpState.LISTEN)
    return on


def _holder(found: Collection[InetSocket], uid: int | None) -> str:
    if found and all(map(_has_ended, found)):
        return "a connection that is just ending"
    return holder_of([one.inode for one in found], uid)


def holder_of(inodes: Collection[int], uid: int | None) -> str:
    """The holder of one of those sockets; named where it is that user's program."""
    wanted = {f"socket:[{inode}]" for inode in inodes if inode}
    for pid in procfs.pids() if wanted else ():
        if any(one.target in wanted for one in procfs.descriptors(pid)):
            name = f"{procfs.name(pid)} (process {pid})"
            _log.info("- a port that a suspended session needs is taken by %s", name)
            owner = procfs.status(pid).get("Uid", "").split()[:1]
            return name if uid is None or owner == [str(uid)] else _SOMEBODY
    return _SOMEBODY

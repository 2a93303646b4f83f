"""UNIX sockets that lead to others, and whose they are said to be."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.linux import ptrace
from jupyterhub_gpu_reclaim.linux.sock_diag import TcpState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return


_log = logging.getLogger(__name__)


class UnixPeers(Kind):
    """UNIX sockets that lead to others, and the owners of listeners."""

    def rewrite(self, back: Return) -> None:
        # CRIU joins two ends that lead to each other as soon as it has both; one that
        # leads where nothing leads back, to a listener that has not accepted it or to a
        # datagram socket, only to what it has read before ("Peer … unresolved"). It
        # writes them in the order of their descriptors, which may be any.
        entries = back.saved.entries
        unix = {
            number: entry.usk
            for number, entry in entries.items()
            if entry.HasField("usk") and number not in back.descriptors
        }
        steps = _steps({one.ino: one.peer for one in unix.values()})
        if any(steps.values()):
            order = {number: steps.get(one.ino, 0) for number, one in unix.items()}
            numbers = sorted(entries, key=lambda number: order.get(number, 0))
            back.saved.entries = {number: entries[number] for number in numbers}

    def after_restore(self, back: Return) -> None:
        # Who connects to a listener is told by SO_PEERCRED whose it is: its user and
        # process when it called listen(2). CRIU makes sockets before it gives a process
        # its user, so that would be root. Each listener's program is therefore made to
        # call listen once more; nothing else changes by that. The ends of a connection
        # are told when it is made, and never again: of those, SO_PEERCRED says root.
        listeners = {
            number: entry.usk.backlog
            for number, entry in back.saved.entries.items()
            if entry.HasField("usk")
            and entry.usk.type != socket.SOCK_DGRAM
            and entry.usk.state == TcpState.LISTEN
        }
        wanted: dict[int, dict[int, int]] = {}
        for number, pid, fd in back.holders(listeners):
            wanted.setdefault(pid, {})[fd] = listeners.pop(number)
        for pid, calls in wanted.items():
            try:
                with ptrace.stopped(pid) as traced:
                    for fd, backlog in calls.items():
                        traced.call("listen", fd, backlog)
            except OSError as error:
                _log.warning("- listeners of process %d read as root's: %s", pid, error)


def _steps(peers: Mapping[int, int]) -> dict[int, int]:
    """How many sockets each leads to, one by another; none, in a circle of them."""
    found: dict[int, int] = {}
    for start in peers:
        path, one = [], start
        while one in peers and one not in found:
            found[one] = 0
            path.append(one)
            one = peers[one]
        if one in path:
            del path[path.index(one) :]
        steps = found.get(one, -1)
        for each in reversed(path):
            steps += 1
            found[each] = steps
    return found

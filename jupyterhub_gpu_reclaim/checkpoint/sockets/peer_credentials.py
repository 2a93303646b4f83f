"""Has restored programs listen again on their UNIX sockets, so that these are theirs.

Who connects to a listener is told by SO_PEERCRED whose it is: its user and process when
it called listen(2). After a restore that would be root: CRIU makes sockets before it
gives a process its user. So each listener's program is made to call listen once more,
before it continues; nothing else changes by that.

The ends of a connection are told when it is made, and never again. Of those that a
restore has made, SO_PEERCRED says root.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.linux import procfs, ptrace
from jupyterhub_gpu_reclaim.linux.sock_diag import TcpState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyterhub_gpu_reclaim.linux.processes import Snapshot

#: How long a process may take to stand for it.
_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)


def listen_again(
    tree: Snapshot,
    descriptors: Mapping[tuple[int, int], tuple[int, int]],
    entries: Mapping[int, Any],
) -> None:
    """Do so for a restored and still stopped tree.

    A program that has confined itself since (seccomp) is left alone: the call might end
    it.

    Args:
        tree: its processes.
        descriptors: (pid in the session, descriptor) → (kind, entry of the image).
        entries: of ``files.img``.
    """
    listeners = {
        number: entry.usk.backlog
        for number, entry in entries.items()
        if entry.HasField("usk")
        and entry.usk.type != socket.SOCK_DGRAM
        and entry.usk.state == TcpState.LISTEN
    }
    # The root of a session is ours, and all its programs have the filters it has.
    usual = _filters(tree.root.pid) if tree.root is not None else ""
    pids = {
        process.ns_pid: process.pid
        for process in tree.processes
        if listeners and _filters(process.pid) == usual
    }
    wanted: dict[int, dict[int, int]] = {}
    for (owner, fd), (_, number) in sorted(descriptors.items()):
        if number in listeners and owner in pids:
            wanted.setdefault(pids[owner], {})[fd] = listeners.pop(number)
    for pid, calls in wanted.items():
        try:
            with ptrace.stopped(pid, seconds=_SECONDS) as traced:
                for fd, backlog in calls.items():
                    traced.call("listen", fd, backlog)
        except OSError as error:
            _log.warning("- listeners of process %d read as root's: %s", pid, error)


def _filters(pid: int) -> str:
    return procfs.status(pid).get("Seccomp_filters", "")

"""Drains a session's output, then cuts its connections, so that no output is lost.

A line of output goes from a kernel to the server and from there to the user's tab. A
careless cut can lose it in two ways: a server writes to a connection whose end it has
not seen yet; or it is frozen before it has written the line, and writes it to a dead
connection when it comes back. So the programs that talk to the server are stopped
first, and stay so through the dump; the server hands on what it has, is cut off, and
notices. It hears of no new connection until it is stopped (``listeners``), and a busy
one is cut all the same when its time is up. The caller thaws the tree.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet, listeners
from jupyterhub_gpu_reclaim.linux import processes, procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

#: Seconds that the server has to hand on its output, and again to see the cut.
PATIENCE = 0.5
#: A server that has not run for so many seconds waits for input.
_STILL = 0.02
#: How long it may take to stop; the dump waits for it all the same.
_STOP_SECONDS = 0.2


def cut_in_silence(tree: Snapshot, *, patience: float = PATIENCE) -> list[int]:
    """End the connections that lead out of the tree, between two lines of output.

    On return the server is stopped, and the processes that are connected to it; the
    tree's root is never stopped here. The server is waited for twice, before and after
    the cut. Returns what :func:`inet.cut_external` does.

    Raises:
        Refused: the session or the kernel's list of sockets is not there.
    """
    pids = [process.pid for process in tree.processes]
    server = tree.server
    if server is None:
        return inet.cut_external(tree.init.pid, pids)
    links = _stop_speakers(tree, server)
    _wait_still(server, lambda: _handed_on(tree.init.pid, server, links), patience)
    with listeners.deaf(tree.init.pid, server):
        cut = inet.cut_external(tree.init.pid, pids)
        if cut:
            _wait_still(server, lambda: not _inodes(server) & {*cut}, patience)
        processes.stop(server, _STOP_SECONDS)
    return cut


def _stop_speakers(tree: Snapshot, server: Process) -> frozenset[int]:
    held = {process: _inodes(process) for process in tree.processes}
    everybody = frozenset().union(*held.values())
    mine = inet.sockets_of(tree.init.pid, everybody)
    links = inet.links_of(mine, held[server])
    for process, inodes in held.items():
        if process in {server, tree.root} or not inodes & links:
            continue
        # A shell would see its program stop, and take its terminal away from it.
        if not procfs.terminal(process.pid):
            processes.send(process, signal.SIGSTOP)
    return links


def _inodes(process: Process) -> frozenset[int]:
    return frozenset(inet.tree_inodes([process.pid]))


def _handed_on(init_pid: int, server: Process, links: Collection[int]) -> bool:
    ears = _inodes(server) & frozenset(links)
    return not any(
        # Output of the server waits for the stopped processes, and may.
        one.unread if one.inode in ears else one.unsent
        for one in inet.sockets_of(init_pid, links)
    )


def _wait_still(server: Process, settled: Callable[[], bool], patience: float) -> None:
    """Wait until that holds and the server has nothing left to do, or time is up.

    What it has read from a socket it still has to hand on, which no socket shows; but
    it runs while it does so.
    """
    deadline = time.monotonic() + patience
    before = processes.times_run(server)
    while time.monotonic() < deadline:
        time.sleep(_STILL)  # the kernel has no event for going to sleep
        now = processes.times_run(server)
        if now == before and settled():
            return
        before = now

"""Finds what keeps this node from capturing: CRIU, store, inotify, control groups.

An agent starts without CRIU and says so; it takes one that is installed later without a
restart. The inotify limit holds for all programs of a user id on the machine, in
containers and outside together, so sessions of the same id share it, and CRIU recreates
theirs as root. Instances in use are not counted, as they change all the time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu
from jupyterhub_gpu_reclaim.checkpoint.gpu import cuda
from jupyterhub_gpu_reclaim.common.errors import Refused, StoreError
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.node_status import NodeStatus
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import capabilities, procfs
from jupyterhub_gpu_reclaim.linux.cgroups import container_of, groups_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jupyterhub_gpu_reclaim.checkpoint.sockets.held import HeldPorts
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
    from jupyterhub_gpu_reclaim.node.setup.store import Opened

#: CRIU's self-test takes about a second; a good answer holds for so many seconds.
_GOOD_SECONDS = 300.0
_BAD_SECONDS = 5.0
_STATE_GONE = "The agent's state folder is not there any more. Is it mounted?"


class CheckedCriu:
    """The CRIU of this machine, from any thread."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._found: list[Finding] = []
        self._version = ""
        self._until = float("-inf")

    def criu(self) -> criu.Criu:
        """The one to use.

        Raises:
            Refused: there is none, it is too old, or it cannot be started.
        """
        return criu.locate(self._folder)

    def version(self) -> str:
        """CRIU's version, dotted; empty if it cannot save sessions."""
        self.findings()
        return self._version

    def findings(self) -> list[Finding]:
        """What keeps CRIU from saving sessions here; remembered for a while."""
        with self._lock:
            if self._clock.monotonic() >= self._until:
                self._found = criu.check(self._folder)
                fatal = any(finding.fatal for finding in self._found)
                numbers = () if fatal else self.criu().version()
                self._version = ".".join(map(str, numbers))
                good = _BAD_SECONDS if fatal else _GOOD_SECONDS
                self._until = self._clock.monotonic() + good
            return list(self._found)


INOTIFY_LIMIT: Final = procfs.PROC / "sys" / "fs" / "inotify" / "max_user_instances"
#: Kernels come with 128, which the few sessions of tests/cluster have used up when they
#: were root's, as runtime and kubelet are.
ENOUGH_INSTANCES: Final = 1024


def inotify_findings(limit: Path = INOTIFY_LIMIT) -> Iterator[Finding]:
    """A note if the limit is low; none if there is no such limit."""
    try:
        number = int(limit.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return
    if number < ENOUGH_INSTANCES:
        yield finding(Reason.FEW_WATCHES, fatal=False, limit=number)


def cgroup_findings() -> Iterator[Finding]:
    """Whether an agent in a container reaches the node's control groups."""
    # Those of sessions are reached in the same way as its own.
    agent = os.getpid()
    if container_of(agent) is None:
        return
    try:
        groups = groups_of(agent, at_host=True)
    except OSError as error:
        yield finding(Reason.CGROUPS_DENIED, what="read", why=str(error))
        return
    if not groups:
        why = "they are not among the mounts of process 1"
        yield finding(Reason.CGROUPS_DENIED, what="read", why=why)
    for group in groups:
        try:
            (group.folder / "cgroup.procs").open("a").close()  # nothing is written
        except OSError as error:
            why = str(error)
            yield finding(Reason.CGROUPS_DENIED, fatal=False, what="write", why=why)
            return


def node_status(
    criu: CheckedCriu,
    accelerator: Accelerator,
    store: Opened,
    ports: HeldPorts,
    work: Path,
) -> NodeStatus:
    """Versions, room on its disks, and what keeps it from capturing sessions.

    Anything unknown is left out.
    """
    state_free = store_free = None
    of_store = store.presence.findings()
    gone = []
    try:
        state_free = shutil.disk_usage(work).free
    except OSError:
        gone = [finding(Reason.STATE_UNUSABLE, what=_STATE_GONE)]
    told = [found.code for found in of_store]
    if Reason.STORE_UNREACHABLE.value not in told:  # it would be waited for
        with contextlib.suppress(StoreError):
            store_free = store.repository.free_bytes()
    findings = [
        *capabilities.findings(),
        *criu.findings(),
        *of_store,
        *gone,
        *accelerator.node_findings(),
        *inotify_findings(),
        *cgroup_findings(),
        *port_findings(ports),
    ]
    return NodeStatus(
        host=socket.gethostname(),
        version=__version__,
        criu=criu.version(),
        driver=cuda.driver_version(),
        state_free=state_free,
        store_free=store_free,
        findings=findings,
    )


def port_findings(ports: HeldPorts) -> list[Finding]:
    """Ports of suspended sessions that others have; tries to get them back."""
    try:
        return [
            finding(
                Reason.PORT_IN_USE, fatal=False, port=one.port, holder="another program"
            )
            for one in ports.missing()
        ]
    except Refused as error:
        return [finding(error.reason, fatal=False, **error.facts)]

"""Finds out whether the file systems that a session uses answer, before they must.

A call to one that does not (FUSE, NFS) waits, mostly for ever: CRIU, with the session
frozen, or a thread of ours. So a child asks first (``far_probe.py``), and is left
behind if it cannot be ended. One that falls silent later is noticed by where its
callers wait (:class:`FarWaits`), which the kernel shows in ``/proc/<pid>/task/*/stack``
to root with CAP_SYS_ADMIN; without that, it goes unnoticed. Which ones a session uses
is read in /proc, which asks no file system.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.linux import processes, procfs, ptrace
from jupyterhub_gpu_reclaim.linux.descriptors import readable
from jupyterhub_gpu_reclaim.linux.mounts import mount_of, read_mounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyterhub_gpu_reclaim.linux.mounts import Mount
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

#: How their types begin, as mount tables name them.
FAR_KINDS: Final = ("fuse", "nfs", "9p", "ceph", "cifs", "smb", "autofs")
#: Seconds of one and the same wait after which no answer is expected.
SILENT_SECONDS: Final = 3.5
#: How often to look.
LOOK_SECONDS: Final = 0.5
#: The kernel's functions of those file systems.
_FUNCTIONS: Final = re.compile(
    # Who serves files waits in fuse_dev_do_read.
    r"\b(fuse_(?!dev_)|request_wait_answer|nfs|rpc_|cifs_|smb2_|ceph_|p9_|v9fs_)"
)
#: Process and thread.
Task = tuple[int, int]

_PROBE: Final = Path(__file__).with_name("far_probe.py")
#: Seconds until the child has begun; a busy machine is not a silent file system.
_START_SECONDS: Final = 30.0
_KILL_SECONDS: Final = 0.2

#: Children that could not be ended, by what they wait for (major:minor): no other one
#: is sent there meanwhile.
_hanging: dict[str, subprocess.Popen[bytes]] = {}


class FarUse(NamedTuple):
    """One process that uses a far file system, and by which link of /proc."""

    process: Process
    link: str
    mount: Mount

    @property
    def facts(self) -> dict[str, Any]:
        # Of ``files_silent``.
        return {
            "path": self.mount.target,
            "kind": self.mount.kind,
            **self.process.facts,
        }


def used(tree: Snapshot) -> list[FarUse]:
    """The far file systems that a tree uses, each with one of its users."""
    far = _far_mounts(tree.init.pid)
    found: dict[str, FarUse] = {}
    for process in tree.processes if far else ():
        for link, target in procfs.links(process.pid):
            mount = mount_of(target, far)
            if mount is not None:
                use = FarUse(process, f"{procfs.PROC}/{process.pid}/{link}", mount)
                found.setdefault(mount.device, use)
    return list(found.values())


def silent(tree: Snapshot) -> FarUse | None:
    """A far file system that a tree uses and that does not answer; else None.

    It takes some tens of milliseconds, and four seconds if one does not answer.
    """
    uses = used(tree)
    if not uses:
        return None
    for use in uses:
        child = _hanging.get(use.mount.device)
        if child is not None and child.poll() is None:
            return use
        _hanging.pop(use.mount.device, None)
    return _probe(uses) or _waiting(tree, uses)


def _far_mounts(init_pid: int) -> list[Mount]:
    mounts = read_mounts(init_pid)
    return [mount for mount in mounts if mount.kind.startswith(FAR_KINDS)]


def _probe(uses: list[FarUse]) -> FarUse | None:
    words = [sys.executable, "-I", "-S", str(_PROBE), *(use.link for use in uses)]
    child = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    with child.stdout as said:
        readable([said], _START_SECONDS)
        answers = 0
        deadline = time.monotonic() + SILENT_SECONDS
        while readable([said], deadline - time.monotonic()):
            data = os.read(said.fileno(), 4096)
            if not data:
                child.wait()
                return None  # all have been asked
            answers += data.count(b"\n")
            deadline = time.monotonic() + SILENT_SECONDS
    late = uses[min(max(answers - 1, 0), len(uses) - 1)]
    child.kill()
    with suppress(subprocess.TimeoutExpired):
        child.wait(_KILL_SECONDS)
    if child.returncode is None:
        _hanging[late.mount.device] = child
    return late


def _waiting(tree: Snapshot, uses: list[FarUse]) -> FarUse | None:
    """The same, for one that answers that child alone, and lets a program wait."""
    # Such a program could not be stopped.
    waits = FarWaits(tree.init.pid, tree.init.start_time)
    tasks = [
        (process.pid, tid)
        for process in tree.processes
        for tid in ptrace.tasks(process.pid)
        if procfs.stat(process.pid, tid)[:1] == ["D"]
    ]
    while not waits.silent(tasks):
        if not waits.any:
            return None
        time.sleep(LOOK_SECONDS)
    return uses[0]


def tasks_below(pid: int) -> Iterator[Task]:
    for tid in ptrace.tasks(pid):
        yield pid, tid
        for child in procfs.text(pid, f"task/{tid}/children").split():
            yield from tasks_below(int(child))


class FarWaits:
    """How long which tasks have waited for a file of a session, each in one wait."""

    def __init__(self, init_pid: int, init_start: int) -> None:
        self._init = init_pid, init_start
        self._since: dict[Task, tuple[str, float]] = {}

    @cached_property
    def exist(self) -> bool:
        """Whether it has such files."""
        return bool(_far_mounts(self._init[0]))

    @property
    def any(self) -> bool:
        """Whether a task was in such a wait at the last look."""
        return bool(self._since)

    def silent(self, tasks: Iterable[Task]) -> dict[str, Any]:
        """The facts of ``files_silent`` once a task waits in vain for such a file.

        Empty until then, and where the session has ended. Call it again and again.
        """
        now = time.monotonic()
        former, self._since = self._since, {}
        for task in tasks if self.exist else ():
            if wait := _wait(*task):
                known, since = former.get(task, ("", now))
                self._since[task] = wait, since if known == wait else now
        times = [since for _, since in self._since.values()]
        late = any(now - since >= SILENT_SECONDS for since in times)
        return self.facts() if late else {}

    def facts(self) -> dict[str, Any]:
        try:
            tree = processes.snapshot(*self._init)
        except NotFound:
            return {}
        uses = used(tree)
        if not uses:  # something searches there
            far = _far_mounts(tree.init.pid)
            uses = [FarUse(tree.init, "", one) for one in far[:1]]
        return uses[0].facts if uses else {}


def _wait(pid: int, tid: int) -> str:
    stack = procfs.text(pid, f"task/{tid}/stack")
    if not _FUNCTIONS.search(stack):
        return ""
    status = procfs.text(pid, f"task/{tid}/status")
    return stack + status[status.find("voluntary_ctxt_switches") :]

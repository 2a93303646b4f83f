"""Kernel objects behind descriptors and mappings that CRIU does not save."""

from __future__ import annotations

import fcntl
import os
import re
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.descriptors import closing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Session
    from jupyterhub_gpu_reclaim.common.models import Finding

#: Kernel objects behind descriptors that CRIU saves.
_ANONYMOUS_OK: Final = frozenset(
    {"eventfd", "eventpoll", "inotify", "signalfd", "timerfd", "pidfd"}
)
#: F_SEAL_WRITE and F_SEAL_FUTURE_WRITE.
_WRITE_SEALS: Final = 0x8 | 0x10
_ANONYMOUS: Final = re.compile(r"^anon_inode:\[?([^\]]*)\]?$")


class KernelObjects(Kind):
    """io_uring, userfaultfd, performance counters, BPF and the like."""

    def preflight(self, seen: Session) -> Iterator[Finding]:
        for one in seen.programs:
            targets = one.links.values()
            kinds = {match[1] for name in targets if (match := _ANONYMOUS.match(name))}
            if any(target.startswith("/secretmem") for target in targets):
                kinds.add("secretmem")
            for kind in sorted(kinds - _ANONYMOUS_OK):
                if kind == "io_uring":
                    yield one.found(Reason.IO_URING)
                else:
                    yield one.holds(f"a kernel object ({kind})")


class Memfds(Kind):
    """Files in memory (memfd): programs that run from one, and seals."""

    def preflight(self, seen: Session) -> Iterator[Finding]:
        for one in seen.programs:
            if any(_is_write_sealed(one.pid, each) for each in one.mappings):
                what = "memory that is sealed against writes (F_SEAL_WRITE)"
                yield one.holds(f"a shared mapping of {what}")
            if procfs.link(one.pid, "exe").startswith("/memfd:"):
                yield one.does("runs a program that is in memory only (memfd)")


def _is_write_sealed(pid: int, one: procfs.Mapping) -> bool:
    """Whether CRIU would map a memfd before it sealed it, which the kernel forbids."""
    if not one.path.startswith("/memfd:") or one.mode[1] == "w" or one.mode[3] != "s":
        return False
    try:
        file = os.open(procfs.PROC / f"{pid}/{one.link}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # it is gone meanwhile
    with closing(file):
        return bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & _WRITE_SEALS)

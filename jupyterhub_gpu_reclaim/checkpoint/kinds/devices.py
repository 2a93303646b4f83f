"""Devices that a process holds open."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.files.reopen import is_memory_device
from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import DEVICES as GPU_DEVICES
from jupyterhub_gpu_reclaim.checkpoint.kinds import terminals
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Program, Session
    from jupyterhub_gpu_reclaim.common.models import Finding

# Numbers of Documentation/admin-guide/devices.txt.
_PTMX: Final = os.makedev(5, 2)
_PTY_MASTERS: Final = range(128, 136)


class Devices(Kind):
    """Devices: memory devices are taken like files, and terminals rebuilt.

    A handle on any other driver has state in the kernel that cannot be read out.
    """

    def preflight(self, seen: Session) -> Iterator[Finding]:
        for one in seen.programs:
            for device in sorted(set(_refused(one))):
                if one.pid in seen.gpu_savable and device.startswith(GPU_DEVICES):
                    continue
                yield one.found(Reason.DEVICE_OPEN, device=device)


def _refused(one: Program) -> Iterator[str]:
    for link, target in one.links.items():
        # What else is mapped is a file.
        begin = "/dev/" if link.startswith("map_files/") else "/"
        status = one.target(link) if target.startswith(begin) else None
        if status is None:
            continue
        device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
        if device and not _harmless(one, status, link):
            yield target


def _harmless(one: Program, status: os.stat_result, link: str) -> bool:
    if stat.S_ISBLK(status.st_mode):
        return False
    if status.st_rdev == terminals.DEV_TTY:
        kind, _, fd = link.partition("/")
        return kind == "fd" and terminals.can_be_named(one, int(fd))
    major = os.major(status.st_rdev)
    pty = major in _PTY_MASTERS or major in terminals.PTYS
    return is_memory_device(status) or pty or status.st_rdev == _PTMX

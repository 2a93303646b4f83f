"""Lists the devices that a process may hold open when it is saved.

CRIU takes the memory devices like files and rebuilds ttys; a handle on any other driver
has state in the kernel that cannot be read out.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.files import terminals
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable

# Numbers of Documentation/admin-guide/devices.txt.
_MEMORY, _TTY, _TTY_AUXILIARY, _MISC = 1, 4, 5, 10
_MEMORY_OK: Final = frozenset({3, 5, 7, 8, 9, 11})  # null zero full random urandom kmsg
_CONSOLES: Final = range(1, 64)
_TTY_AUXILIARY_OK: Final = frozenset({2})  # /dev/ptmx
_PTY_MASTERS: Final = range(128, 136)
_TUN: Final = 200


def refused_devices(
    pid: int,
    descriptors: Iterable[procfs.Descriptor],
    mappings: Iterable[procfs.Mapping],
) -> list[str]:
    """The paths of devices that a process has open or mapped and may not, sorted."""
    held = [(d.target, f"fd/{d.fd}", d.fd) for d in descriptors]
    held += [
        (m.path, f"map_files/{m.start:x}-{m.end:x}", -1)
        for m in mappings
        if m.path.startswith("/dev/")
    ]
    refused = set()
    for target, link, fd in held:
        status = procfs.target_status(pid, link) if target.startswith("/") else None
        if status is None:
            continue
        device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
        if device and not _harmless(status, pid, fd):
            refused.add(target)
    return sorted(refused)


def is_memory_device(status: os.stat_result) -> bool:
    """Whether that is one of those that hold no state, such as ``/dev/null``."""
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    is_device = stat.S_ISCHR(status.st_mode)
    return is_device and major == _MEMORY and minor in _MEMORY_OK


def _harmless(status: os.stat_result, pid: int, fd: int) -> bool:
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    if stat.S_ISBLK(status.st_mode):
        return False
    if major == _MEMORY:
        return minor in _MEMORY_OK
    if major == _TTY:
        return minor in _CONSOLES
    if status.st_rdev == terminals.DEV_TTY:
        return terminals.can_be_named(pid)
    if major == _TTY_AUXILIARY:
        return minor in _TTY_AUXILIARY_OK
    if (major, minor) == (_MISC, _TUN):
        # Opened only: fine. With an interface it is part of the network.
        return not procfs.fdinfo(pid, fd).get("iff")
    return major in _PTY_MASTERS or major in terminals.PTYS

"""Finds deleted files that a process holds without the right to read them.

A deleted file has no place but in the image, so CRIU opens it again, as root, and
copies its contents. But a process may hold what it may not read: opened for writing
only, or as a place only (O_PATH), for which the kernel checks no right at all. A user
could so hold another's file, wait until it was deleted or replaced, and read it once
the session is back.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.checkpoint.files.credentials import (
    OVERRIDE,
    again,
    credentials_now,
    run_as,
)
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot
    from jupyterhub_gpu_reclaim.linux.procfs import Descriptor

_READERS: Final = frozenset({os.O_RDONLY, os.O_RDWR})


def held_by(pid: int, descriptors: Iterable[Descriptor]) -> Iterator[str]:
    """The paths of those files among the descriptors of a process."""
    for one in descriptors:
        if not one.target.startswith("/"):
            continue
        flags = int(procfs.fdinfo(pid, one.fd).get("flags", "0"), 8)
        if can_read(flags):
            continue
        status = procfs.target_status(pid, f"fd/{one.fd}")
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_nlink:
            continue
        if not _may_read(pid, one.fd, status):
            yield one.target.removesuffix(" (deleted)")


def refuse(tree: Snapshot) -> None:
    """Judge a tree that stands, so that nothing is opened any more.

    Raises:
        ReclaimError: it holds such a file (``handle_unsupported``).
    """
    for process in tree.processes:
        for path in held_by(process.pid, procfs.descriptors(process.pid)):
            raise ReclaimError(
                Reason.HANDLE_UNSUPPORTED,
                pid=process.ns_pid,
                name=process.name,
                kind=words(path),
            )


def words(path: str) -> str:
    """Such a file, in words."""
    name = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return f"the file {name}, which its user may not read"


def can_read(flags: int) -> bool:
    """Whether what is open with those flags can be read by its descriptor."""
    return not flags & os.O_PATH and flags & os.O_ACCMODE in _READERS


def may_read(who: Credentials, ghost: Any) -> bool:
    """Whether those rights allow to read a saved deleted file. Pure.

    Args:
        who: whose rights.
        ghost: its ``ghost_file_entry``.
    """
    if who.uid == ghost.uid or who.effective & OVERRIDE:
        return True
    in_group = ghost.gid in {who.gid, *who.groups}
    return bool(ghost.mode & (stat.S_IRGRP if in_group else stat.S_IROTH))


def _may_read(pid: int, fd: int, status: os.stat_result) -> bool:
    try:
        who = credentials_now(pid)
        found = os.open(procfs.PROC / str(pid) / f"fd/{fd}", os.O_PATH)
    except OSError:
        return True  # it is gone meanwhile, or was closed
    try:
        if who.uid == status.st_uid:
            return True
        return run_as(who, lambda: os.access(again(found), os.R_OK, effective_ids=True))
    finally:
        os.close(found)

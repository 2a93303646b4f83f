"""Lets a tree that CRIU has left stopped continue as if nothing had happened.

It ends a failed dump, and a capture that is cancelled or taken back. After a dump that
succeeded, CRIU (4.1, 4.2: ``cr_dump_finish``) leaves three things behind besides the
stopped processes, since it expects them to be killed: TCP connections in repair mode,
which send nothing; ``link_remap.N`` files; and nothing that says so. It undoes both
only when the dump failed or the tree continues.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.tree import freeze
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.linux.beneath import open_in_root, open_root
from jupyterhub_gpu_reclaim.linux.pidfd import borrow
from jupyterhub_gpu_reclaim.linux.procfs import PROC
from jupyterhub_gpu_reclaim.linux.sock_diag import TCP_REPAIR

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

_REMAP = re.compile(r"link_remap\.\d+$")
_DELETED = " (deleted)"


def thaw(snapshot: Snapshot, keep_stopped: Collection[int] = ()) -> None:
    """Undo what a dump has done to the session, and continue it; idempotent.

    Args:
        snapshot: the tree, as it is now.
        keep_stopped: pids, in the session's namespace, that were stopped before.
    """
    for process in snapshot.processes:
        leave_repair(process)
        remove_link_remaps(process)
    # First those beside it, the init among them: it is the tree's reaper.
    freeze.go_on(
        one
        for one in freeze.bystanders(snapshot)
        if one.stopped and one.ns_pid not in keep_stopped
    )
    processes.resume(snapshot.processes, keep_stopped)


def leave_repair(process: Process) -> int:
    """Take the process's TCP connections out of repair mode; how many there were."""
    count = 0
    with processes.held(process) as pidfd:
        if pidfd is None:
            return 0
        for descriptor, target in _descriptors(process.pid):
            if not target.startswith("socket:"):
                continue
            with contextlib.suppress(OSError), borrow(pidfd, descriptor) as end:
                if end.getsockopt(socket.IPPROTO_TCP, TCP_REPAIR):
                    end.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 0)
                    # Repair mode has overwritten this one. Set is what a server's
                    # connections have, and harms no others.
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    count += 1
    return count


def remove_link_remaps(process: Process) -> list[str]:
    """Remove the names that CRIU gave to deleted files of the process; which."""
    removed = []
    with contextlib.ExitStack() as stack:
        try:
            root = open_root(PROC / str(process.pid) / "root")
        except OSError:
            return []
        stack.callback(os.close, root)
        for path, inode in _deleted_files(process.pid):
            folder = _nearest_folder(root, path)
            if folder is not None:
                stack.callback(os.close, folder)
                removed += _remove_names(folder, inode)
    return removed


def _nearest_folder(root: int, path: str) -> int | None:
    """The folder above a path, or the next one that is there still, opened."""
    for folder in Path(path).parents:
        with contextlib.suppress(OSError):
            flags = os.O_RDONLY | os.O_DIRECTORY
            return open_in_root(root, os.fsencode(folder), flags)
    return None


def _remove_names(folder: int, inode: tuple[int, int]) -> list[str]:
    removed = []
    # One after the other: a user may have millions of names there.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not _REMAP.match(entry.name):
                continue
            status = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
            if (status.st_dev, status.st_ino) == inode:
                os.unlink(entry.name, dir_fd=folder)
                removed.append(entry.name)
    return removed


def _descriptors(pid: int) -> Iterator[tuple[int, str]]:
    """The open descriptors of a process, with what they lead to."""
    with contextlib.suppress(OSError):
        for entry in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield int(entry.name), str(entry.readlink())


def _deleted_files(pid: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Files without their name that the process has open or mapped."""
    for kind in ("fd", "map_files"):
        with contextlib.suppress(OSError):
            for entry in (PROC / str(pid) / kind).iterdir():
                with contextlib.suppress(OSError):
                    target = str(entry.readlink())
                    if target.startswith("/") and target.endswith(_DELETED):
                        stat = entry.stat()
                        if stat.st_nlink:
                            inode = (stat.st_dev, stat.st_ino)
                            yield target.removesuffix(_DELETED), inode

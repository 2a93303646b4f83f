"""Finds the paths of what a session watches (inotify), so that CRIU need not search.

CRIU saves a watch by its path, and the kernel tells only a file handle. With
``--force-irmap`` CRIU looks at every file below the folders that it is given until one
has that inode (criu/irmap.c): half a million files in ``/tmp`` kept a session frozen
for eight seconds, and on a busy machine for most of a minute. A folder that is itself
given is found at the first look, so here each watch's path is asked of the kernel, by
its handle (``open_by_handle_at``).

Container images are overlays, whose handles cannot be opened. There the folders that
programs usually watch are compared, first of all ``/etc``, as c-ares does in each
Jupyter server that has ``aiodns``. What is not found so, and what lies on a file system
that waits for another program or machine (FUSE, NFS), is left to CRIU's search.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.beneath import open_in_root, open_root
from jupyterhub_gpu_reclaim.linux.far_files import FAR_KINDS
from jupyterhub_gpu_reclaim.linux.file_handles import (
    MAX_BYTES,
    FileHandle,
    open_handle,
)
from jupyterhub_gpu_reclaim.linux.mounts import mount_of, read_mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.linux.mounts import Mount
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot

#: Paths that CRIU is given; of more, those nearest to the root, below which it finds
#: the others.
MOST: Final = 256
#: Watches that are looked up; a session stands still meanwhile.
_LOOKED_UP: Final = 4096
#: Folder that CRIU searches for the rest: programs watch their own files there.
_SEARCHED: Final = "/tmp"  # noqa: S108 - the session's own, looked at only
#: Paths that overlays are compared with, besides the processes' own folders.
_USUAL: Final = ("/etc", "/", "/home", "/opt", "/root", "/run", "/srv", "/usr", "/var")
_OVERLAY: Final = "overlay"
#: Of the kernel itself: their handles lead to nothing.
_KERNEL: Final = frozenset({"proc", "sysfs", "devpts"})
_MINOR_BITS: Final = 20  # linux/kdev_t.h


class Watch(NamedTuple):
    """One line of an inotify instance in ``fdinfo`` (proc_pid_fdinfo(5))."""

    device: str  #: major:minor
    inode: int
    handle: FileHandle


def arguments(tree: Snapshot) -> list[str]:
    """Arguments of ``criu dump`` that say where to look for what the tree watches.

    The deepest first: a look below a folder that is not the one takes in all of it.
    """
    found = sorted(paths(tree), key=lambda path: path.count("/"))[:MOST]
    searched = [*reversed(found), _SEARCHED]
    return [word for path in searched for word in ("--irmap-scan-path", path)]


def paths(tree: Snapshot) -> set[str]:
    """The paths of what the tree watches, as the session sees them."""
    every = (one for process in tree.processes for one in _watches_of(process.pid))
    watches = set(itertools.islice(every, _LOOKED_UP))
    if not watches:
        return set()
    root = open_root(procfs.PROC / str(tree.init.pid) / "root")
    try:
        mounts = read_mounts(tree.init.pid)
        usual = _on_overlays(tree, mounts, root)
        found = (_place(watch, mounts, usual, root) for watch in watches)
        return {path for path in found if path is not None}
    finally:
        os.close(root)


def watches_deleted(pid: int, init_pid: int) -> bool:
    """Whether a process watches what has no name any more, which CRIU cannot save.

    Only what is still open somewhere: a watch ends with what it watches.
    """
    watches = set(itertools.islice(_watches_of(pid), _LOOKED_UP))
    if not watches:
        return False
    mounts = read_mounts(init_pid)
    root = open_root(procfs.PROC / str(init_pid) / "root")
    try:
        return any(_is_deleted(watch, mounts, root) for watch in watches)
    finally:
        os.close(root)


def watches_kernel(pid: int, init_pid: int) -> bool:
    """Whether a process watches in ``/proc``, ``/sys`` or ``/dev/pts``.

    CRIU finds nothing by a handle there.
    """
    devices = {_device(one) for text in _instances(pid) for one in _lines(text)}
    return bool(devices) and any(
        mount.kind in _KERNEL and mount.device in devices
        for mount in read_mounts(init_pid)
    )


def _is_deleted(watch: Watch, mounts: list[Mount], root: int) -> bool:
    for mount in mounts:
        if mount.device != watch.device or mount.kind.startswith(FAR_KINDS):
            continue
        with _opened(watch, os.fsencode(mount.target), root) as found:
            if found is not None:
                return not os.fstat(found).st_nlink
    return False


def watches_in(text: str) -> Iterator[Watch]:
    """The watches of an inotify instance, from its ``fdinfo``. Pure."""
    for fields in _lines(text):
        try:
            handle = bytes.fromhex(fields["f_handle"])
            inode, kind = int(fields["ino"], 16), int(fields["fhandle-type"], 16)
        except (KeyError, ValueError):
            continue  # the file system has no handles
        if len(handle) <= MAX_BYTES:
            yield Watch(_device(fields), inode, FileHandle(kind, handle))


def _lines(text: str) -> Iterator[dict[str, str]]:
    """The fields of each watch, as its line tells them."""
    for line in text.splitlines():
        if line.startswith("inotify "):
            yield dict(word.partition(":")[::2] for word in line.split()[1:])


def _device(fields: dict[str, str]) -> str:
    """``major:minor`` of the file system that a watch is on."""
    device = int(fields["sdev"], 16)
    return f"{device >> _MINOR_BITS}:{device & (1 << _MINOR_BITS) - 1}"


def _instances(pid: int) -> Iterator[str]:
    """What the kernel tells of each inotify instance of a process."""
    for one in procfs.descriptors(pid):
        if one.target == "anon_inode:inotify":
            yield procfs.text(pid, f"fdinfo/{one.fd}")


def _watches_of(pid: int) -> Iterator[Watch]:
    return itertools.chain.from_iterable(map(watches_in, _instances(pid)))


def _on_overlays(
    tree: Snapshot, mounts: list[Mount], root: int
) -> dict[tuple[str, int], str]:
    """Device and inode → path of what is usually watched and lies on an overlay."""
    found: dict[tuple[str, int], str] = {}
    for path in sorted(
        {*_USUAL, *(procfs.link(one.pid, "cwd") for one in tree.processes)}
    ):
        mount = mount_of(path, mounts)
        if mount is not None and mount.kind == _OVERLAY:
            inode = _inode(path, root)
            if inode is not None:
                found.setdefault((mount.device, inode), path)
    return found


def _place(
    watch: Watch, mounts: list[Mount], usual: dict[tuple[str, int], str], root: int
) -> str | None:
    """Path of a watched inode in the session, by the mounts of its file system."""
    for mount in mounts:
        if mount.device != watch.device or mount.kind.startswith(FAR_KINDS):
            continue
        if mount.kind == _OVERLAY:
            return usual.get((watch.device, watch.inode))
        path = _named(watch, os.fsencode(mount.target), root)
        if path is not None and _inode(path, root) == watch.inode:
            return path
    return None


def _inode(path: str, root: int) -> int | None:
    """Inode that the session finds at a path; None where there is nothing."""
    try:
        seen = open_in_root(root, os.fsencode(path), os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.fstat(seen).st_ino
    finally:
        os.close(seen)


def _named(watch: Watch, target: bytes, root: int) -> str | None:
    """Path of a watched inode in a mount; None if absent, or if its name is lost."""
    with _opened(watch, target, root) as found:
        if found is None:
            return None
        return os.readlink(f"/proc/self/fd/{found}")  # noqa: PTH115 - any bytes


@contextlib.contextmanager
def _opened(watch: Watch, target: bytes, root: int) -> Iterator[int | None]:
    """Open what is watched, by name only; None if it is not in that mount."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with contextlib.ExitStack() as stack:
        try:
            mount = open_in_root(root, target, flags)
            stack.callback(os.close, mount)
            found = open_handle(mount, watch.handle)
        except OSError:
            yield None
            return
        stack.callback(os.close, found)
        yield found

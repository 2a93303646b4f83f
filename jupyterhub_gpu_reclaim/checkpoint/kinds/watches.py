"""What a session watches: inotify."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import itertools
import os
import stat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import again, run_as
from jupyterhub_gpu_reclaim.checkpoint.files.reopen import GONE, FileIdentity, identity
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.beneath import found_at, root_of
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.far_files import FAR_KINDS
from jupyterhub_gpu_reclaim.linux.file_handles import (
    MAX_BYTES,
    FileHandle,
    open_handle,
)
from jupyterhub_gpu_reclaim.linux.libc import checked, libc
from jupyterhub_gpu_reclaim.linux.mounts import mount_of, read_mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import (
        Dump,
        Program,
        Return,
        Session,
    )
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.mounts import Mount

#: Paths that CRIU is given; of more, those nearest to the root, below which it finds
#: the others.
MOST: Final = 256
#: Watches that are looked up; a session stands still meanwhile.
_LOOKED_UP: Final = 4096
#: Folder that CRIU searches for the rest: programs watch their own files there.
_SEARCHED: Final = "/tmp"  # noqa: S108 - the session's own, looked at only
#: Paths that overlays are compared with, besides the processes' own folders.
_USUAL: Final = ("/etc", "/", "/home", "/opt", "/root", "/run", "/srv", "/usr", "/var")
_TARGET: Final = "anon_inode:inotify"
_IN_DELETE_SELF, _IN_IGNORED = 0x400, 0x8000
#: All events, IN_EXCL_UNLINK and IN_ONESHOT; the others count only for the call.
_KEPT: Final = 0xFFF | 1 << 26 | 1 << 31
#: _IOW('I', 0, __s32) of <linux/inotify.h>
_SET_NEXT_WATCH: Final = 0x40044900
_OVERLAY: Final = "overlay"
#: Of the kernel itself: their handles lead to nothing.
_KERNEL: Final = frozenset({"proc", "sysfs", "devpts"})
_MINOR_BITS: Final = 20  # linux/kdev_t.h


class Watch(NamedTuple):
    """One line of an inotify instance in ``fdinfo`` (proc_pid_fdinfo(5))."""

    device: str  #: major:minor
    inode: int
    handle: FileHandle


class Watches(Kind):
    """Watches on files and folders (inotify).

    Their instances are made again with the rights of their holder. CRIU saves a watch
    by its path, and the kernel tells only a file handle. With ``--force-irmap`` CRIU
    looks at every file below the folders that it is given until one has that inode
    (criu/irmap.c): half a million files in ``/tmp`` kept a session frozen for eight
    seconds, and on a busy machine for most of a minute. A folder that is itself given
    is found at the first look, so here each watch's path is asked of the kernel, by its
    handle (``open_by_handle_at``).

    Container images are overlays, whose handles cannot be opened. There the folders
    that programs usually watch are compared, first of all ``/etc``, as c-ares does in
    each Jupyter server that has ``aiodns``. What is not found so, and what lies on a
    file system that waits for another program or machine (FUSE, NFS), is left to CRIU's
    search.
    """

    def preflight(self, seen: Session) -> Iterator[Finding]:
        for one in seen.programs:
            if not (told := list(_instances(one))):
                continue
            mounts = read_mounts(seen.init_pid)
            if _watches_deleted(told, mounts, seen.init_pid):
                yield one.holds(
                    "a watch (inotify) on a deleted file that is still open"
                )
            devices = {_device(fields) for text in told for fields in _lines(text)}
            # CRIU finds nothing by a handle there.
            if any(it.kind in _KERNEL and it.device in devices for it in mounts):
                yield one.holds("a watch (inotify) in /proc, /sys or /dev/pts")

    def before_dump(self, dump: Dump) -> None:
        dump.arguments += arguments(dump)

    def rewrite(self, back: Return) -> None:
        instances = {}
        for number, entry in back.saved.entries.items():
            if entry.type == images.TYPE_INOTIFY:
                instances[number] = entry.ify
            if entry.type == images.TYPE_FANOTIFY:
                # One that root makes tells more than one that its user makes.
                why = "it watches files with fanotify"
                raise RestoreFailed(Reason.RESTORE_FAILED, why=why)
        trial = None
        if back.trial is not None and instances:
            # With it each is only tried: those of a tree that stands count against its
            # user's limits.
            trial = back.stack.enter_context(closing(new_instance(0)))
        for number, saved in instances.items():
            made = functools.partial(_instance, saved, back.root, trial)
            back.hand_over(number, run_as(back.saved.holder(number), made))


def _instance(saved: Any, root: int, trial: int | None) -> int:
    """An instance with its watches; of what is gone it tells as if that had just ended.

    Raises:
        RestoreFailed: a path may not be watched (``file_denied``).
    """
    made = new_instance(saved.flags) if trial is None else os.dup(trial)
    seen: set[FileIdentity] = set()
    with closing(made) as instance:
        for one in sorted(saved.wd, key=lambda watch: watch.wd):
            try:
                what = _add(instance, root, one)
                if trial is not None:
                    checked(libc.inotify_rm_watch(instance, one.wd))
                    if what in seen:
                        raise _another_watch()
                    seen.add(what)
            except OSError as error:
                if error.errno not in GONE:
                    path, why = one.f_handle.path, error.strerror or ""
                    raise refused(Reason.FILE_DENIED, path, why) from None
                _tell_of_end(instance, one)
        return os.dup(instance)


def _add(instance: int, root: int, watch: Any) -> FileIdentity:
    with found_at(root, watch.f_handle.path) as name:
        if stat.S_ISLNK(os.fstat(name).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        _watch(instance, watch.wd, name, watch.mask & _KEPT)
        return identity(name)


def new_instance(flags: int) -> int:
    return checked(libc.inotify_init1(flags & os.O_NONBLOCK | os.O_CLOEXEC))


def _watch(instance: int, number: int, descriptor: int, mask: int) -> None:
    fcntl.ioctl(instance, _SET_NEXT_WATCH, number)
    path, bits = again(descriptor).encode(), ctypes.c_uint32(mask)
    if checked(libc.inotify_add_watch(instance, path, bits)) != number:
        raise _another_watch()


def _another_watch() -> OSError:
    return OSError(errno.EEXIST, "another watch is there already")


def _tell_of_end(instance: int, watch: Any) -> None:
    """Let it watch something that ends at once, by the number of what has ended."""
    mask = watch.mask & _IN_DELETE_SELF | _IN_IGNORED
    with closing(os.memfd_create("ended")) as memory:
        _watch(instance, watch.wd, memory, mask)


def arguments(seen: Session) -> list[str]:
    """Arguments of ``criu dump`` that say where to look for what the tree watches.

    The deepest first: a look below a folder that is not the one takes in all of it.
    """
    found = sorted(paths(seen), key=lambda path: path.count("/"))[:MOST]
    searched = [*reversed(found), _SEARCHED]
    return [word for path in searched for word in ("--irmap-scan-path", path)]


def paths(seen: Session) -> set[str]:
    """The paths of what the tree watches, as the session sees them."""
    told = (text for one in seen.programs for text in _instances(one))
    every = itertools.chain.from_iterable(map(watches_in, told))
    watches = set(itertools.islice(every, _LOOKED_UP))
    if not watches:
        return set()
    with root_of(seen.init_pid) as root:
        mounts = read_mounts(seen.init_pid)
        usual = _on_overlays(seen, mounts, root)
        found = (_place(watch, mounts, usual, root) for watch in watches)
        return {path for path in found if path is not None}


def _watches_deleted(told: list[str], mounts: list[Mount], init_pid: int) -> bool:
    """Whether something watched has no name any more, which CRIU cannot save.

    Only what is still open somewhere: a watch ends with what it watches.
    """
    every = (watch for text in told for watch in watches_in(text))
    watches = set(itertools.islice(every, _LOOKED_UP))
    with root_of(init_pid) as root:
        return any(
            not os.fstat(one).st_nlink
            for watch in watches
            for one in _opened(watch, mounts, root)
        )


def watches_in(text: str) -> Iterator[Watch]:
    for fields in _lines(text):
        try:
            handle = bytes.fromhex(fields["f_handle"])
            inode, kind = int(fields["ino"], 16), int(fields["fhandle-type"], 16)
        except (KeyError, ValueError):
            continue  # the file system has no handles
        if len(handle) <= MAX_BYTES:
            yield Watch(_device(fields), inode, FileHandle(kind, handle))


def _lines(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        if line.startswith("inotify "):
            yield dict(word.partition(":")[::2] for word in line.split()[1:])


def _device(fields: dict[str, str]) -> str:
    device = int(fields["sdev"], 16)
    return f"{device >> _MINOR_BITS}:{device & (1 << _MINOR_BITS) - 1}"


def _instances(one: Program) -> Iterator[str]:
    return (one.info(d.fd) for d in one.descriptors if d.target == _TARGET)


def _on_overlays(
    seen: Session, mounts: list[Mount], root: int
) -> dict[tuple[str, int], str]:
    """Device and inode → path of what is usually watched and lies on an overlay."""
    found: dict[tuple[str, int], str] = {}
    folders = (procfs.link(one.pid, "cwd") for one in seen.programs)
    for path in sorted({*_USUAL, *folders}):
        mount = mount_of(path, mounts)
        if mount is not None and mount.kind == _OVERLAY:
            inode = _inode(path, root)
            if inode is not None:
                found.setdefault((mount.device, inode), path)
    return found


def _place(
    watch: Watch, mounts: list[Mount], usual: dict[tuple[str, int], str], root: int
) -> str | None:
    if (watch.device, watch.inode) in usual:
        return usual[watch.device, watch.inode]
    for found in _opened(watch, mounts, root):
        path = os.readlink(f"/proc/self/fd/{found}")  # noqa: PTH115 - any bytes
        if _inode(path, root) == watch.inode:
            return path
    return None


def _inode(path: str, root: int) -> int | None:
    try:
        with found_at(root, os.fsencode(path), os.O_PATH) as seen:
            return os.fstat(seen).st_ino
    except OSError:
        return None


def _opened(watch: Watch, mounts: list[Mount], root: int) -> Iterator[int]:
    """What is watched, by each mount of its file system; void with the next."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    for mount in mounts:
        if mount.device != watch.device or mount.kind.startswith(FAR_KINDS):
            continue
        with (
            contextlib.suppress(OSError),
            found_at(root, os.fsencode(mount.target), flags) as place,
            closing(open_handle(place, watch.handle)) as found,
        ):
            yield found

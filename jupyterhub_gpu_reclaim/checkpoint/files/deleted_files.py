"""Deleted open files: refused, saved by their contents or another name, made again.

**Refused** (:func:`refuse_unreadable`) are files that a process holds without the right
to read them. A deleted file has no place but in the image, so CRIU opens it again, as
root, and copies its contents. But a process may hold what it may not read: opened for
writing only, or as a place only (O_PATH), for which the kernel checks no right at all.
A user could so hold another's file, wait until it was deleted or replaced, and read it
once the session is back.

**Another name.** Files whose name was deleted but which still have another one are not
saved: the session finds them again. But by which name? CRIU (4.2:
``create_link_remap``) would give them one of its own, ``link_remap.N``, as root, in the
folder where the lost name was, found by its path. A link put in that folder's place
would make root create a name in any folder of that file system. So CRIU may not
(``--link-remap`` is not given): :class:`Unlinked` gives each such file its name before
CRIU looks, with the rights of the task that holds it, and CRIU is told that it is taken
care of (``--external``). Where that task may make no name, such as for a library of
root's, the contents are saved if it may read them; the restored task then has a copy.
What is written into the images is what CRIU would have written, and the file's handle:
the first return takes the given name away again, while its checkpoint is kept, and a
second one finds the file by its handle, as long as it has another name.

**Made again** (:class:`Ghost`). CRIU would make a deleted file by its former path, as
root, and remove that name again. Here it is a file without a name from the beginning
(O_TMPFILE), made with the rights of its holder in the folder where it was, or in
``/tmp`` where that is gone or closed. Where a file system has no such files (NFS), a
new name is taken for a moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from jupyterhub_gpu_reclaim.checkpoint.buffers import BufferReader
from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.process import GHOST_LIMIT_BYTES
from jupyterhub_gpu_reclaim.checkpoint.files import locks
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import (
    OVERRIDE,
    again,
    credentials_now,
    run_as,
)
from jupyterhub_gpu_reclaim.checkpoint.files.reopen import (
    ELSEWHERE,
    FileIdentity,
    identity,
)
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.beneath import open_in_root, open_root
from jupyterhub_gpu_reclaim.linux.file_handles import handle_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.criu.stream import Sink
    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from jupyterhub_gpu_reclaim.linux.procfs import Descriptor

_READERS: Final = frozenset({os.O_RDONLY, os.O_RDWR})


def held_unreadable(pid: int, descriptors: Iterable[Descriptor]) -> Iterator[str]:
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


def refuse_unreadable(tree: Snapshot) -> None:
    """Judge a tree that stands, so that nothing is opened any more.

    Raises:
        ReclaimError: it holds such a file (``handle_unsupported``).
    """
    for process in tree.processes:
        for path in held_unreadable(process.pid, procfs.descriptors(process.pid)):
            raise ReclaimError(
                Reason.HANDLE_UNSUPPORTED,
                pid=process.ns_pid,
                name=process.name,
                kind=unreadable_words(path),
            )


def unreadable_words(path: str) -> str:
    """Such a file, in words."""
    name = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return f"the file {name}, which its user may not read"


def can_read(flags: int) -> bool:
    """Whether what is open with those flags can be read by its descriptor."""
    return not flags & os.O_PATH and flags & os.O_ACCMODE in _READERS


def may_read(who: Credentials, ghost: Any) -> bool:
    """Whether those rights allow to read a saved deleted file. Pure."""
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


_U32: Final = struct.Struct("<I")
_BLOCK: Final = 1 << 20
_NO_TMPFILE: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})


class Ghost:
    """The image of one deleted file.

    Raises:
        RestoreFailed: it is off (``checkpoint_damaged``).
    """

    def __init__(self, buffers: Iterable[bytes | memoryview]) -> None:
        self._stream = BufferReader(iter(buffers))
        head = self._stream.read(8)
        if head != _U32.pack(images.COMMON_MAGIC) + _U32.pack(images.GHOST_MAGIC):
            raise images.damaged("a deleted file has no head")
        self.entry: Any = self._message("ghost_file_entry")

    def make(self, root: int, path: bytes) -> int:
        """An empty file of that kind, without a name; called inside of ``run_as``.

        Raises:
            RestoreFailed: its holder may make none, or it is of another kind.
        """
        parent = path.rpartition(b"/")[0] or b"/"
        failure = "no folder takes it"
        for place in (parent, ELSEWHERE):
            try:
                folder = open_in_root(root, place, os.O_PATH | os.O_DIRECTORY)
            except OSError as error:
                failure = error.strerror or failure
                continue
            try:
                return self._make(folder, path)
            except OSError as error:
                failure = error.strerror or failure
            finally:
                os.close(folder)
        raise refused(Reason.FILE_DENIED, path, failure)

    def fill(self, descriptor: int) -> None:
        """Put its contents in."""
        if not stat.S_ISREG(self.entry.mode):
            return
        if not self.entry.chunks:
            at = 0
            while block := self._stream.read(_BLOCK):
                at += os.pwrite(descriptor, block, at)
            return
        os.ftruncate(descriptor, self.entry.size)
        while self._stream.has_more():
            chunk = self._message("ghost_chunk_entry")
            at, end = chunk.off, chunk.off + chunk.len
            if end > self.entry.size:
                raise images.damaged("a deleted file is longer than it was")
            while at < end:
                block = self._stream.read(min(_BLOCK, end - at))
                if not block:
                    raise images.damaged("a deleted file is cut off")
                at += os.pwrite(descriptor, block, at)

    def finish(self, descriptor: int) -> None:
        """Set mode and times, once it is open everywhere; called in ``run_as``."""
        if stat.S_ISLNK(self.entry.mode):
            return
        path = again(descriptor)
        # What its holder may not set is left away, as chmod(2) does it.
        os.chmod(path, stat.S_IMODE(self.entry.mode))  # noqa: PTH101
        if self.entry.HasField("mtim"):
            times = (_nanoseconds(self.entry.atim), _nanoseconds(self.entry.mtim))
            os.utime(path, ns=times)

    def _make(self, folder: int, path: bytes) -> int:
        kind = stat.S_IFMT(self.entry.mode)
        if kind == stat.S_IFREG:
            with contextlib.suppress(_NoTmpfile):
                return _tmpfile(again(folder))
        name = b".reclaim-" + secrets.token_hex(8).encode()
        flags = os.O_PATH | os.O_NOFOLLOW
        os.fchdir(folder)  # this thread's own
        if kind == stat.S_IFREG:
            made = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        elif kind == stat.S_IFDIR:
            os.mkdir(name, 0o700)  # noqa: PTH102
            made = os.open(name, flags)
            os.rmdir(name)  # noqa: PTH106
            return made
        elif kind == stat.S_IFIFO:
            os.mkfifo(name, 0o600)
            made = os.open(name, flags)
        elif kind == stat.S_IFLNK:
            os.symlink(self.entry.symlnk_target, name)  # noqa: PTH211
            made = os.open(name, flags)
        else:
            raise refused(Reason.FILE_DENIED, path, "it was deleted and is no file")
        os.unlink(name)  # noqa: PTH108
        return made

    def _message(self, kind: str) -> Any:
        head = self._stream.read(_U32.size)
        if len(head) != _U32.size or _U32.unpack(head)[0] > images.MAX_ENTRY_BYTES:
            raise images.damaged("a deleted file has an entry that is off")
        return images.parse(kind, self._stream.read(_U32.unpack(head)[0]))


class _NoTmpfile(Exception):
    """The file system cannot make files without a name (O_TMPFILE)."""


def _tmpfile(folder: str) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno in _NO_TMPFILE:
            raise _NoTmpfile from None
        raise


def _nanoseconds(time: Any) -> int:
    return int(time.tv_sec * 1_000_000_000 + time.tv_usec * 1000)


FILES, REMAPS = "files.img", "remap-fpath.img"
_MEMORIES: Final = "mm-"
_DELETED: Final = b" (deleted)"
#: NFS keeps a deleted file by such a name until it is closed.
_SILLY: Final = b".nfs"
_NFS_MAGIC: Final = 0x6969
_STATFS_BYTES: Final = 256  # more than a struct statfs
#: CRIU counts its own from 1.
_FIRST_GHOST: Final = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Link(NamedTuple):
    """A name that a capture has given to a deleted file."""

    path: bytes
    identity: FileIdentity
    holder: Credentials


def remove_links(init_pid: int, links: Iterable[Link]) -> None:
    """Take those names away again, each with the rights of its holder; idempotent.

    One that its user has given to something else meanwhile, or has locked away, stays.
    """
    if not links:
        return
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        root = open_root(f"/proc/{init_pid}/root")
        stack.callback(os.close, root)
        for link in links:
            with contextlib.suppress(OSError):
                run_as(link.holder, lambda: _unlink(root, link))  # noqa: B023


def _unlink(root: int, link: Link) -> None:
    parent, _, name = link.path.rpartition(b"/")
    folder = open_in_root(root, parent or b"/", os.O_PATH | os.O_DIRECTORY)
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if FileIdentity(status.st_dev, status.st_ino) == link.identity:
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(folder)


class HeldImages:
    """Passes CRIU's images on but for those that are to be rewritten."""

    def __init__(self, sinks: Callable[[str], Sink]) -> None:
        self._sinks = sinks
        self.kept: dict[str, bytes] = {}

    def __call__(self, name: str) -> Sink:
        """See ``CaptureServer``."""
        if name in {FILES, REMAPS, locks.IMAGE} or name.startswith(_MEMORIES):
            return _KeptImage(name, self.kept)
        return self._sinks(name)

    def reopen(self, closed: Collection[int]) -> None:
        """Have those processes be dumpable again that were so before the dump."""
        for name, data in self.kept.items():
            number = name.removeprefix(_MEMORIES).removesuffix(".img")
            if name.startswith(_MEMORIES) and int(number) in closed:
                payload = images.only(data, images.MM_MAGIC)
                memory = images.parse("mm_entry", payload)
                memory.dumpable = 1
                self.kept[name] = images.join(
                    images.MM_MAGIC, [images.serialize(memory)]
                )


class _KeptImage:
    def __init__(self, name: str, kept: dict[str, bytes]) -> None:
        self._name = name
        self._kept = kept
        self._data = bytearray()

    def write(self, data: memoryview, /) -> None:
        self._data += data

    def close(self) -> None:
        self._kept[self._name] = bytes(self._data)


class _Key(NamedTuple):
    """CRIU's name for a file that is handled outside of it."""

    mount: int
    inode: int

    def __str__(self) -> str:
        return f"file[{self.mount:x}:{self.inode:x}]"


@dataclass
class _File:
    """An open file whose name was deleted, but which has another one.

    Attributes:
        path: the name that it has lost.
        descriptor: of ours; it opens nothing (O_PATH).
        holders: the tasks that have it.
        reads: whether a holder has it open for reading.
        link: the name that it was given; none where its contents are saved.
        namer: with whose rights.
        who: process that needs it saved, for the message when it cannot be.
    """

    path: bytes
    descriptor: int
    status: os.stat_result
    holders: set[Credentials]
    reads: bool
    who: Process
    link: bytes = b""
    namer: Credentials | None = None


class Unlinked:
    """Open files of a stopped tree that have lost a name but have another one.

    Closes its descriptors at the end of its block.
    """

    def __init__(self, init_pid: int, tree: Snapshot) -> None:
        self._init_pid = init_pid
        self._tree = tree
        self._files: dict[_Key, _File] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Give each its name.

        Raises:
            ReclaimError: one cannot be named, and its contents not be saved.
        """
        try:
            root = open_root(procfs.PROC / str(self._init_pid) / "root")
            self._stack.callback(os.close, root)
            for process in self._tree.processes:
                for link in _links(process.pid):
                    self._look(root, process, link)
            for one in self._files.values():
                if not _give_name(root, one):
                    _refuse_contents(one)
        except BaseException:
            self._undo()
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let go of them; after an error, take their names away again."""
        if kind is not None:
            self._undo()
        self._stack.close()

    def _undo(self) -> None:
        links = [
            Link(one.link, identity(one.descriptor), one.namer)
            for one in self._files.values()
            if one.namer is not None
        ]
        remove_links(self._init_pid, links)

    def arguments(self) -> list[str]:
        """For CRIU."""
        return [word for key in self._files for word in ("--external", str(key))]

    def rewrite(self, kept: dict[str, bytes]) -> dict[str, bytes]:
        """The images that describe them, in place of CRIU's.

        Args:
            kept: CRIU's ``files.img`` and ``remap-fpath.img``, as far as they exist.
        """
        if not self._files or FILES not in kept:
            return kept
        entries = list(images.file_entries(kept[FILES]))
        known = {str(key).encode(): one for key, one in self._files.items()}
        ghosts = {id(one): number for number, one in self._ghosts()}
        first = max((entry.id for entry in entries), default=0) + 1
        made: dict[bytes, Any] = {}
        remaps = []
        for entry in entries:
            one = known.get(entry.reg.name) if entry.reg.ext else None
            if one is None:
                continue
            entry.reg.name = one.path
            entry.reg.ClearField("ext")
            if one.link:
                if one.link not in made:
                    made[one.link] = _entry(first + len(made), one)
                target, kind = made[one.link].id, images.REMAP_LINKED
            else:
                target, kind = ghosts[id(one)], images.REMAP_GHOST
            remaps.append(images.remap(entry.id, target, kind))
        payloads = [images.serialize(entry) for entry in (*entries, *made.values())]
        files = images.join(images.FILES_MAGIC, payloads)
        had = kept.get(REMAPS)
        before = [] if had is None else list(images.split(had, images.REMAP_MAGIC))
        after = images.join(images.REMAP_MAGIC, [*before, *remaps])
        return {**kept, FILES: files, REMAPS: after}

    def save(self, held: HeldImages, sinks: Callable[[str], Sink]) -> None:
        """Save their descriptions, and those without a name."""
        for name, data in self.rewrite(held.kept).items():
            sink = sinks(name)
            sink.write(memoryview(data))
            sink.close()
        for number, one in self._ghosts():
            sink = sinks(f"ghost-file-{number:x}.img")
            for block in _contents(one):
                sink.write(memoryview(block))
            sink.close()

    def _ghosts(self) -> Iterable[tuple[int, _File]]:
        nameless = [one for one in self._files.values() if not one.link]
        return enumerate(nameless, _FIRST_GHOST)

    def _look(self, root: int, process: Process, link: str) -> None:
        folder = procfs.PROC / str(process.pid)
        try:
            target = os.fsencode((folder / link).readlink())
            if not target.startswith(b"/") or not _may_be_one(target):
                return
            found = os.open(folder / link, os.O_PATH)
        except OSError:
            return  # it was closed meanwhile
        status = os.fstat(found)
        if not status.st_nlink or not _is_one(root, target, found, status):
            os.close(found)
            return
        self._stack.callback(os.close, found)
        key = _Key(int(procfs.fdinfo(os.getpid(), found)["mnt_id"]), status.st_ino)
        path = target.removesuffix(_DELETED)
        new = _File(path, found, status, set(), reads=False, who=process)
        one = self._files.setdefault(key, new)
        one.holders.add(credentials_now(process.pid))
        one.reads |= _reads(process.pid, link)


def _links(pid: int) -> Iterator[str]:
    """Every link of a process that leads to a file, below its folder in /proc."""
    yield from ("cwd", "root", "exe")
    for kind in ("fd", "map_files"):
        with contextlib.suppress(OSError):
            for entry in (procfs.PROC / str(pid) / kind).iterdir():
                yield f"{kind}/{entry.name}"


def _reads(pid: int, link: str) -> bool:
    kind, _, number = link.partition("/")
    if kind != "fd":
        return kind in {"map_files", "exe"}
    flags = procfs.fdinfo(pid, int(number)).get("flags")
    return flags is not None and can_read(int(flags, 8))


def _may_be_one(target: bytes) -> bool:
    is_silly = target.rpartition(b"/")[2].startswith(_SILLY)
    return target.endswith(_DELETED) or is_silly


def _is_one(root: int, target: bytes, found: int, status: os.stat_result) -> bool:
    """Whether it is one; a name may end in ``(deleted)`` by itself."""
    if not target.endswith(_DELETED):
        facts = ctypes.create_string_buffer(_STATFS_BYTES)
        known = _libc.fstatfs(found, facts) == 0
        return known and int.from_bytes(facts.raw[:8], "little") == _NFS_MAGIC
    try:
        there = open_in_root(root, target, os.O_PATH)
    except OSError:
        return True
    try:
        return not os.path.samestat(os.fstat(there), status)
    finally:
        os.close(there)


def _give_name(root: int, one: _File) -> bool:
    """Give it a name, with the least rights with which that can be done."""
    if stat.S_ISDIR(one.status.st_mode):
        return False
    for who in sorted(one.holders, key=lambda holder: holder.rank):
        with contextlib.suppress(OSError):
            one.link = run_as(who, lambda: _link(root, one))
            one.namer = who
            return True
    return False


def _link(root: int, one: _File) -> bytes:
    """In the folder where it was, or the nearest above that takes it; as the task.

    Raises:
        OSError: none takes it.
    """
    parent = one.path.rpartition(b"/")[0]
    while True:
        name = b"link_remap.%d" % secrets.randbelow(1 << 31)
        try:
            folder = open_in_root(root, parent or b"/", os.O_PATH | os.O_DIRECTORY)
            try:
                source = again(one.descriptor)
                os.link(source, name, dst_dir_fd=folder, follow_symlinks=True)
            finally:
                os.close(folder)
        except OSError:
            if not parent:
                raise
            parent = parent.rpartition(b"/")[0]
            continue
        return parent + b"/" + name


def _refuse_contents(one: _File) -> None:
    """Judge whether a file that has got no name may be saved instead.

    Raises:
        ReclaimError: it may not (``handle_unsupported``).
    """
    if not stat.S_ISREG(one.status.st_mode):
        return
    kind = ""
    if not one.reads:
        kind = unreadable_words(os.fsdecode(one.path))
    elif one.status.st_size > GHOST_LIMIT_BYTES:
        kind = "a deleted file that is too large to be suspended"
    if kind:
        pid, name = one.who.ns_pid, one.who.name
        raise ReclaimError(Reason.HANDLE_UNSUPPORTED, pid=pid, name=name, kind=kind)


def _contents(one: _File) -> Iterator[bytes]:
    """Yield the image of a deleted file, a block at a time."""
    entry = images.ghost(one.status)
    yield images.join(images.GHOST_MAGIC, [images.serialize(entry)])
    if not stat.S_ISREG(one.status.st_mode):
        return
    # As root: that its holder can read it was judged.
    with Path(again(one.descriptor)).open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _entry(number: int, one: _File) -> Any:
    """The entry of a name that was given."""
    made = images.plain_file(number)
    made.reg.name = one.link
    handle = handle_of(one.descriptor)
    if handle is not None:
        made.reg.handle = handle.packed()
    return made

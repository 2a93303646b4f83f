"""Handles open files whose name was deleted but which still have another one.

They are not saved: the session finds them again. But by which name? CRIU (4.2:
``create_link_remap``) would give them one of its own, ``link_remap.N``, as root, in the
folder where the lost name was, found by its path. A link put in that folder's place
would make root create a name in any folder of that file system. So CRIU may not
(``--link-remap`` is not given): each such file gets its name here, before CRIU looks,
with the rights of the task that holds it, and CRIU is told that it is taken care of
(``--external``). Where that task may make no name, such as for a library of root's, the
contents are saved if it may read them; the restored task then has a copy.

What is written into the images is what CRIU would have written, so that a restore needs
to know nothing of this.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.process import GHOST_LIMIT_BYTES
from jupyterhub_gpu_reclaim.checkpoint.files import unreadable
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import (
    again,
    credentials_now,
    run_as,
)
from jupyterhub_gpu_reclaim.checkpoint.files.handover import Link, remove_links
from jupyterhub_gpu_reclaim.checkpoint.files.reopen import identity
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.beneath import open_in_root, open_root

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.criu.stream import Sink
    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

FILES, REMAPS = "files.img", "remap-fpath.img"
_MEMORIES: Final = "mm-"
_DELETED: Final = b" (deleted)"
#: NFS keeps a deleted file by such a name until it is closed.
_SILLY: Final = b".nfs"
_NFS_MAGIC: Final = 0x6969
_STATFS_BYTES: Final = 256  # more than a struct statfs
#: CRIU counts its own from 1.
_FIRST_GHOST: Final = 0x40000000
_BLOCK: Final = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class HeldBack:
    """Passes CRIU's images on but for those that are to be rewritten.

    Args:
        sinks: where they go.
    """

    def __init__(self, sinks: Callable[[str], Sink]) -> None:
        self._sinks = sinks
        self.kept: dict[str, bytes] = {}

    def __call__(self, name: str) -> Sink:
        """See ``CaptureServer``."""
        if name in {FILES, REMAPS} or name.startswith(_MEMORIES):
            return _Memory(name, self.kept)
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


class _Memory:
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
    """One of them.

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
    """Those of a tree that stands; closes its descriptors at the end of its block."""

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
                if not _name(root, one):
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
                    made[one.link] = _entry(first + len(made), one.link)
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

    def save(self, held: HeldBack, sinks: Callable[[str], Sink]) -> dict[str, int]:
        """Save their descriptions, and those without a name; image → its length."""
        lengths = {}
        for name, data in self.rewrite(held.kept).items():
            sink = sinks(name)
            sink.write(memoryview(data))
            sink.close()
            lengths[name] = len(data)
        for number, one in self._ghosts():
            name = f"ghost-file-{number:x}.img"
            sink = sinks(name)
            lengths[name] = 0
            for block in _contents(one):
                sink.write(memoryview(block))
                lengths[name] += len(block)
            sink.close()
        return lengths

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
    return flags is not None and unreadable.can_read(int(flags, 8))


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


def _name(root: int, one: _File) -> bool:
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
        kind = unreadable.words(os.fsdecode(one.path))
    elif one.status.st_size > GHOST_LIMIT_BYTES:
        kind = "a deleted file that is too large to be suspended"
    if kind:
        pid, name = one.who.ns_pid, one.who.name
        raise ReclaimError(Reason.HANDLE_UNSUPPORTED, pid=pid, name=name, kind=kind)


def _contents(one: _File) -> Iterator[bytes]:
    """Its image, a block at a time."""
    entry = images.ghost(one.status)
    yield images.join(images.GHOST_MAGIC, [images.serialize(entry)])
    if not stat.S_ISREG(one.status.st_mode):
        return
    # As root: that its holder can read it was judged.
    with Path(again(one.descriptor)).open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _entry(number: int, path: bytes) -> Any:
    """The entry of a name that was given."""
    made = images.plain_file(number)
    made.reg.name = path
    return made

"""Reads from CRIU's images which files a saved tree has open, by which tasks, and how.

Pure. It reads the tree (pstree), the credentials (core), the descriptors (ids, fdinfo),
the folders (fs) and the mappings (mm) of images that have been authenticated. A
``Wish`` says what is to be opened, and as which task; ``handover`` does so and tells
CRIU.

An entry of ``files.img`` is one open file description, except for what is mapped, run
or a folder of a process: there CRIU keeps one entry for each file, and opens it again
for each use. Such an entry is split here into one for each way of opening, so that one
descriptor serves each.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.files import semaphores
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import (
    Credentials,
    credentials_of,
)
from jupyterhub_gpu_reclaim.checkpoint.files.process_files import process_of
from jupyterhub_gpu_reclaim.checkpoint.files.semaphores import Counter
from jupyterhub_gpu_reclaim.checkpoint.files.unix_names import Named, take_named
from jupyterhub_gpu_reclaim.checkpoint.memory import reserved, undumpable
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Bits of a vma_entry's status (CRIU's image.h).
_FILE: Final = 1 << 6 | 1 << 7
_SHARED: Final = 1 << 7
_NO_PATH: Final = 1 << 10 | 1 << 11 | 1 << 13 | 1 << 14  # SysV, socket, AIO, memfd
_PROT_WRITE: Final = 0x2

#: Flags of an open file description that open(2) takes.
FLAGS: Final = (
    os.O_ACCMODE
    | os.O_APPEND
    | os.O_NONBLOCK
    | os.O_SYNC
    | os.O_DIRECT
    | os.O_DIRECTORY
    | os.O_NOFOLLOW
    | os.O_NOATIME
    | os.O_PATH
)
#: How a process' own folders are opened: to be entered, not to be read.
FOLDER: Final = os.O_PATH | os.O_DIRECTORY


class FileRequest(NamedTuple):
    """One file to be opened, for CRIU's entry of that number."""

    id: int
    path: bytes
    flags: int
    mode: int  #: as it was; its type must be the same
    holder: Credentials  #: with whose rights
    position: int = 0
    ghost: int = -1  #: number of the deleted file's image; -1 for what has a name
    pipe: int = -1  #: of a FIFO: CRIU's number of what is in it
    is_contents: bool = False  #: only mapped, such that nothing but its contents counts

    @property
    def is_folder(self) -> bool:
        """Whether it is a process' own folder, which it must be allowed to enter."""
        return self.flags == FOLDER


class InotifyWatch(NamedTuple):
    """One watch of an inotify instance."""

    number: int
    path: bytes
    mask: int


class FileUse(NamedTuple):
    """One use of a file by a process: as a folder, as its program, or mapped."""

    pid: int  #: in the session's namespace
    where: str  #: ``map_files/…``, ``cwd``, ``root`` or ``exe``
    id: int


@dataclass
class SavedFiles:
    """Open files as CRIU's images hold them, and the images that CRIU gets instead.

    Attributes:
        entries: of ``files.img``, by number.
        descriptors: (pid, number of a descriptor) → (CRIU's fd_type, entry).
        wishes: what is to be opened.
        uses: folders, programs and mappings of the tree.
        holders: entry → the credentials of its holders.
        rewritten: images that refer to entries by other numbers now.
        left: entries under ``/proc/PID``, which exist only once CRIU runs.
        instances: of inotify: entry → flags and watches.
        sockets: with a name in the file system, by their entries.
        counters: eventfds that CRIU would make otherwise, by their entries.
        credentials: of each process, by its pid in the session.
        closed: processes that CRIU makes not dumpable, and that were (``undumpable``).
        hidden: processes that were not dumpable.
    """

    entries: dict[int, Any] = field(default_factory=dict)
    descriptors: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    wishes: list[FileRequest] = field(default_factory=list)
    uses: list[FileUse] = field(default_factory=list)
    holders: dict[int, set[Credentials]] = field(
        default_factory=lambda: defaultdict(set)
    )
    rewritten: dict[str, bytes] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    instances: dict[int, tuple[int, list[InotifyWatch]]] = field(default_factory=dict)
    sockets: dict[int, Named] = field(default_factory=dict)
    counters: dict[int, Counter] = field(default_factory=dict)
    credentials: dict[int, Credentials] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    hidden: set[int] = field(default_factory=set)

    @property
    def handed(self) -> set[int]:
        """Entries of other things that are handed over as if they were files."""
        return self.instances.keys() | self.sockets.keys() | self.counters.keys()

    def holder(self, number: int) -> Credentials:
        """The rights with which an entry is opened: those of its least powerful holder.

        What is under way in a message may have no holder at all.
        """
        known = self.holders.get(number) or set(self.credentials.values())
        return min(known, key=lambda one: one.rank)


def read_saved(read: Callable[[str], bytes | None]) -> SavedFiles:
    """The files of a saved tree.

    Args:
        read: an image by its name; None where there is none.

    Raises:
        RestoreFailed: the images are off (``checkpoint_damaged``).
    """
    return _Reader(read).run()


class _Reader:
    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read
        self._saved = SavedFiles()
        self._remaps: dict[int, Any] = {}
        #: (entry, flags, shared) → the entry that serves this way of opening.
        self._ways: dict[tuple[int, int, bool], int] = {}
        self._tables: dict[str, list[Any]] = {}
        self._first = 0

    def run(self) -> SavedFiles:
        saved = self._saved
        for entry in images.file_entries(self._read("files.img") or b""):
            if entry.id in saved.entries:
                raise images.damaged(f"file {entry.id} stands twice")
            saved.entries[entry.id] = entry
        self._first = max(saved.entries, default=0) + 1
        for remap in self._entries(
            "remap-fpath.img", images.REMAP_MAGIC, "remap_file_path_entry"
        ):
            self._remaps[remap.orig_id] = remap
        for task in self._entries("pstree.img", images.PSTREE_MAGIC, "pstree_entry"):
            self._process(task.pid)
        described = list(self._described())
        for (number, flags, shared), way in self._ways.items():
            self._split(number, way)
            contents = not shared and flags == os.O_RDONLY
            self._wish(number, way, flags, is_contents=contents)
        pipes = self._fifos()
        for number in described:
            flags = saved.entries[number].reg.flags & FLAGS
            self._wish(number, number, flags, pipe=pipes.get(number, -1))
        self._others()
        # Any remap would be made by its name, as root.
        saved.rewritten["remap-fpath.img"] = images.join(images.REMAP_MAGIC, [])
        return saved

    def _entries(self, name: str, magic: int, kind: str) -> Iterator[Any]:
        image = self._read(name)
        for payload in images.split(image, magic) if image is not None else ():
            yield images.parse(kind, payload)

    def _process(self, pid: int) -> None:
        core, memory = self._read(f"core-{pid}.img"), self._read(f"mm-{pid}.img")
        if core is None or memory is None:
            return  # a zombie
        saved = self._saved
        who = saved.credentials[pid] = credentials_of(core)
        for ids in self._entries(
            f"ids-{pid}.img", images.IDS_MAGIC, "task_kobj_ids_entry"
        ):
            name = f"fdinfo-{ids.files_id}.img"
            table = list(self._entries(name, images.FDINFO_MAGIC, "fdinfo_entry"))
            self._tables[name] = table
            for entry in table:
                saved.holders[entry.id].add(who)
                saved.descriptors[pid, entry.fd] = (entry.type, entry.id)
        folders = f"fs-{pid}.img"
        for fs in self._entries(folders, images.FS_MAGIC, "fs_entry"):
            fs.cwd_id = self._use(pid, "cwd", fs.cwd_id, FOLDER)
            fs.root_id = self._use(pid, "root", fs.root_id, FOLDER)
            image = images.join(images.FS_MAGIC, [images.serialize(fs)])
            saved.rewritten[folders] = image
        mm = images.parse("mm_entry", images.only(memory, images.MM_MAGIC))
        if mm.dumpable != 1:
            saved.hidden.add(pid)
        if undumpable.close(mm, who.uid):
            saved.closed.add(pid)
        reserved.do_not_count(mm)
        mm.exe_file_id = self._use(pid, "exe", mm.exe_file_id, os.O_RDONLY)
        for vma in mm.vmas:
            self._area(pid, vma)
        image = images.join(images.MM_MAGIC, [images.serialize(mm)])
        saved.rewritten[f"mm-{pid}.img"] = image

    def _area(self, pid: int, vma: Any) -> None:
        if not vma.status & _FILE or vma.status & _NO_PATH:
            return
        shared = bool(vma.status & _SHARED)
        flags = os.O_RDONLY  # all that a private mapping takes
        if shared and vma.HasField("fdflags"):
            flags = vma.fdflags & os.O_ACCMODE
        elif shared and vma.prot & _PROT_WRITE:
            flags = os.O_RDWR
        where = f"map_files/{vma.start:x}-{vma.end:x}"
        vma.shmid = self._use(pid, where, vma.shmid, flags, is_shared=shared)

    def _use(
        self, pid: int, where: str, number: int, flags: int, *, is_shared: bool = False
    ) -> int:
        """Note a use of a file; the number of the entry that serves it."""
        saved = self._saved
        entry = saved.entries.get(number)
        if entry is None or not entry.HasField("reg"):
            raise images.damaged(f"process {pid} has a {where} that is no file")
        new = self._first + len(self._ways)
        way = self._ways.setdefault((number, flags, is_shared), new)
        saved.holders[way].add(saved.credentials[pid])
        saved.uses.append(FileUse(pid, where, way))
        return way

    def _split(self, number: int, way: int) -> None:
        entry = self._saved.entries[number]
        other = type(entry)()
        other.CopyFrom(entry)
        other.id = other.reg.id = way
        self._saved.entries[way] = other

    def _fifos(self) -> dict[int, int]:
        """Plain entry → CRIU's number of the pipe, of those that stand for a FIFO."""
        pipes = {}
        for number, entry in self._saved.entries.items():
            if entry.HasField("fifo"):
                plain = entry.fifo.regf_id
                pipes[plain] = entry.fifo.pipe_id
                self._saved.holders[plain] |= self._saved.holders[number]
        return pipes

    def _counters(self) -> None:
        """Collect the eventfds that CRIU would make otherwise (``semaphores``)."""
        saved = self._saved
        marked = set()
        for one in semaphores.read(self._read(semaphores.IMAGE)):
            kind, number = saved.descriptors.get(one, (0, 0))
            if kind != images.TYPE_EVENTFD:
                raise images.damaged("a semaphore is something else")
            marked.add(number)
        for number, entry in saved.entries.items():
            if entry.type == images.TYPE_EVENTFD:
                counter = Counter(entry.efd.flags, entry.efd.counter, number in marked)
                if counter.is_semaphore or counter.is_large:
                    saved.counters[number] = counter

    def _others(self) -> None:
        """Collect what is handed over like files: inotify, sockets and eventfds."""
        saved = self._saved
        for number, entry in saved.entries.items():
            if entry.type == images.TYPE_INOTIFY:
                watches = [
                    InotifyWatch(one.wd, one.f_handle.path, one.mask)
                    for one in entry.ify.wd
                ]
                saved.instances[number] = (entry.ify.flags, watches)
            if entry.type == images.TYPE_FANOTIFY:
                # One that root makes tells more than one that its user makes.
                why = "it watches files with fanotify"
                raise RestoreFailed(Reason.RESTORE_FAILED, why=why)
        saved.sockets = take_named(saved.entries)
        self._counters()
        handed = saved.handed
        for name, table in self._tables.items():
            if any(entry.id in handed for entry in table):
                for entry in table:
                    if entry.id in handed:
                        entry.type = images.TYPE_REG
                payloads = [images.serialize(entry) for entry in table]
                saved.rewritten[name] = images.join(images.FDINFO_MAGIC, payloads)

    def _described(self) -> Iterator[int]:
        """Entries of files that descriptors, or messages under way, lead to."""
        mapped = {number for number, _, _ in self._ways}
        # CRIU gives a mapping and a descriptor of one file one entry.
        opened = {entry.id for table in self._tables.values() for entry in table}
        others = mapped - opened
        for entry in self._saved.entries.values():
            if entry.HasField("tty"):
                others.add(entry.tty.regf_id)
        for number, entry in self._saved.entries.items():
            if entry.HasField("reg") and number not in others:
                yield number

    def _wish(
        self,
        number: int,
        way: int,
        flags: int,
        *,
        pipe: int = -1,
        is_contents: bool = False,
    ) -> None:
        saved = self._saved
        reg, remap = saved.entries[number].reg, self._remaps.get(number)
        path, ghost = reg.name, -1
        if process_of(path) is not None:
            saved.left.append(way)
            return
        if remap is not None and remap.remap_type == images.REMAP_GHOST:
            ghost = remap.remap_id
        position = reg.pos if number == way else 0
        holder = saved.holder(way)
        saved.wishes.append(
            FileRequest(
                id=way,
                path=path,
                flags=flags,
                mode=reg.mode,
                holder=holder,
                position=position,
                ghost=ghost,
                pipe=pipe,
                is_contents=is_contents,
            )
        )

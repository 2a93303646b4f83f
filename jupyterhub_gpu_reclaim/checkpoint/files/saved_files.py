"""Reads from CRIU's images which files a saved tree has open, by which tasks, and how.

An entry of ``files.img`` is one open file description, except for what is mapped, run
or a folder of a process: there CRIU keeps one entry for each file, and opens it again
for each use. Such an entry is split here into one for each way of opening, so that one
descriptor serves each.
"""

from __future__ import annotations

import copy
import itertools
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import (
    Credentials,
    credentials_of,
)
from jupyterhub_gpu_reclaim.checkpoint.saved_images import FILES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages

_REMAPS: Final = "remap-fpath.img"
_OF_A_PROCESS: Final = re.compile(rb"/proc/(\d+)(?:/|$| \(deleted\)$)")
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


class FileUse(NamedTuple):
    """One use of a file by a process: as a folder, as its program, or mapped."""

    pid: int  #: in the session's namespace
    where: str  #: ``map_files/…``, ``cwd``, ``root`` or ``exe``
    id: int


@dataclass
class SavedFiles:
    """Open files of a saved tree."""

    #: Of ``files.img``, by number, as CRIU will read them.
    entries: dict[int, Any] = field(default_factory=dict)
    #: (pid, number of a descriptor) → (CRIU's fd_type, entry).
    descriptors: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    wishes: list[FileRequest] = field(default_factory=list)  #: what is to be opened
    #: Folders, programs and mappings of the tree.
    uses: list[FileUse] = field(default_factory=list)
    #: Entry → the credentials of its holders.
    holders: dict[int, set[Credentials]] = field(
        default_factory=lambda: defaultdict(set)
    )
    #: Of descriptors, as CRIU will read them.
    tables: dict[str, list[Any]] = field(default_factory=dict)
    #: Entries under ``/proc/PID``, which exist only once CRIU runs.
    left: list[int] = field(default_factory=list)
    #: Of each process, by its pid in the session.
    credentials: dict[int, Credentials] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)  #: processes that were not dumpable

    def table_entries(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.tables.values())

    def held(self) -> set[int]:
        return {number for _, number in self.descriptors.values()}

    def holder(self, number: int) -> Credentials:
        """The rights with which an entry is opened: those of its least powerful holder.

        What is under way in a message may have no holder at all.
        """
        known = self.holders.get(number) or set(self.credentials.values())
        return min(known, key=lambda one: one.rank)


def process_of(path: bytes) -> int | None:
    match = _OF_A_PROCESS.match(path)
    return int(match[1]) if match else None


def read_saved(source: SavedImages) -> SavedFiles:
    """The files of a saved tree; its images refer to the entries that serve them.

    Raises:
        RestoreFailed: the images are off (``checkpoint_damaged``).
    """
    return _Reader(source).run()


class _Reader:
    def __init__(self, source: SavedImages) -> None:
        self._images = source
        self._saved = SavedFiles()
        self._remaps: dict[int, Any] = {}
        #: (entry, flags, shared) → the entry that serves this way of opening.
        self._ways: dict[tuple[int, int, bool], int] = {}
        self._first = 0

    def run(self) -> SavedFiles:
        saved, entries = self._saved, self._images.entries
        for entry in entries(FILES, images.FILES_MAGIC, "file_entry"):
            if entry.id in saved.entries:
                raise images.damaged(f"file {entry.id} stands twice")
            saved.entries[entry.id] = entry
        self._first = max(saved.entries, default=0) + 1
        remaps = entries(_REMAPS, images.REMAP_MAGIC, "remap_file_path_entry")
        self._remaps = {remap.orig_id: remap for remap in remaps}
        for task in self._images.tasks():
            self._process(task.pid)
        described = list(self._described())
        for (number, flags, shared), way in self._ways.items():
            other = saved.entries[way] = copy.deepcopy(saved.entries[number])
            other.id = other.reg.id = way
            contents = not shared and flags == os.O_RDONLY
            self._wish(number, way, flags, is_contents=contents)
        pipes = self._fifos()
        for number in described:
            flags = saved.entries[number].reg.flags & FLAGS
            self._wish(number, number, flags, pipe=pipes.get(number, -1))
        # Any remap would be made by its name, as root.
        self._images.replace(_REMAPS, images.join(images.REMAP_MAGIC, []))
        return saved

    def _process(self, pid: int) -> None:
        core, mm = self._images.core(pid), self._images.memory(pid)
        if core is None or mm is None:
            return  # a zombie
        saved = self._saved
        who = saved.credentials[pid] = credentials_of(core)
        name = f"ids-{pid}.img"
        ids = self._images.entries(name, images.IDS_MAGIC, "task_kobj_ids_entry")
        for one in ids:
            name = f"fdinfo-{one.files_id}.img"
            table = self._images.entries(name, images.FDINFO_MAGIC, "fdinfo_entry")
            saved.tables[name] = table
            for entry in table:
                saved.holders[entry.id].add(who)
                saved.descriptors[pid, entry.fd] = (entry.type, entry.id)
        for fs in self._images.entries(f"fs-{pid}.img", images.FS_MAGIC, "fs_entry"):
            fs.cwd_id = self._use(pid, "cwd", fs.cwd_id, FOLDER)
            fs.root_id = self._use(pid, "root", fs.root_id, FOLDER)
        if mm.dumpable != 1:
            saved.hidden.add(pid)
        mm.exe_file_id = self._use(pid, "exe", mm.exe_file_id, os.O_RDONLY)
        for vma in mm.vmas:
            self._area(pid, vma)

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
        saved = self._saved
        entry = saved.entries.get(number)
        if entry is None or not entry.HasField("reg"):
            raise images.damaged(f"process {pid} has a {where} that is no file")
        new = self._first + len(self._ways)
        way = self._ways.setdefault((number, flags, is_shared), new)
        saved.holders[way].add(saved.credentials[pid])
        saved.uses.append(FileUse(pid, where, way))
        return way

    def _fifos(self) -> dict[int, int]:
        """Plain entry → CRIU's number of the pipe, of those that stand for a FIFO."""
        pipes = {}
        for number, entry in self._saved.entries.items():
            if entry.HasField("fifo"):
                plain = entry.fifo.regf_id
                pipes[plain] = entry.fifo.pipe_id
                self._saved.holders[plain] |= self._saved.holders[number]
        return pipes

    def _described(self) -> Iterator[int]:
        """Entries of files that descriptors, or messages under way, lead to."""
        mapped = {number for number, _, _ in self._ways}
        # CRIU gives a mapping and a descriptor of one file one entry.
        opened = {entry.id for entry in self._saved.table_entries()}
        others = mapped - opened
        for entry in self._saved.entries.values():
            if entry.HasField("tty"):
                others.add(entry.tty.regf_id)
        for number, entry in self._saved.entries.items():
            if entry.HasField("reg") and number not in others:
                yield number

    def _wish(self, number: int, way: int, flags: int, **more: Any) -> None:
        saved = self._saved
        reg, remap = saved.entries[number].reg, self._remaps.get(number)
        if process_of(reg.name) is not None:
            saved.left.append(way)
            return
        if remap is not None and remap.remap_type == images.REMAP_GHOST:
            more["ghost"] = remap.remap_id
        if number == way:
            more["position"] = reg.pos
        holder = saved.holder(way)
        wish = FileRequest(way, reg.name, flags, reg.mode, holder, **more)
        saved.wishes.append(wish)

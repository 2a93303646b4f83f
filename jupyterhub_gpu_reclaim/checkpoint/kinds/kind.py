"""What a kind of thing is asked, and what it is given to answer from."""

from __future__ import annotations

import copy
import functools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.files.reopen import FileIdentity, identity
from jupyterhub_gpu_reclaim.checkpoint.saved_images import FILES
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs, ptrace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from contextlib import ExitStack

    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import PathContext
    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint
    from jupyterhub_gpu_reclaim.checkpoint.files.reopen import Trial
    from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import SavedFiles
    from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

#: No process of /proc has a number like that, so no such path can be made.
_NAME: Final = "/proc/0x{number:x}"


class Kind:
    """One kind of thing; made for one dump or restore, so it may remember."""

    #: Whether ``preflight`` is asked once more of the tree that stands: a program could
    #: have got such a thing in between.
    asked_again: ClassVar[bool] = False

    def preflight(self, seen: Session) -> Iterable[Finding]:
        """Say what keeps a session that runs from being saved; change nothing."""
        del seen
        return ()

    def before_dump(self, dump: Dump) -> None:
        """Look at a tree that stands, and refuse it or prepare it for CRIU.

        Raises:
            ReclaimError: it cannot be saved, or would not come back.
        """

    def save(self, dump: Dump) -> None:
        """Add to CRIU's images what they lack; the tree stands.

        Raises:
            ReclaimError: what CRIU has saved is not what was there.
        """

    def rewrite(self, back: Return) -> None:
        """Prepare what CRIU cannot make, and take it out of the images it is given.

        Raises:
            RestoreFailed: it cannot come back, or the images are off.
        """

    def after_restore(self, back: Return) -> None:
        """Give a tree that CRIU has made, and that stands, what it lacks.

        Raises:
            RestoreFailed: it cannot come back.
        """


@dataclass(kw_only=True)
class Session:
    """A session, and everything that kinds look at in it, read once."""

    init_pid: int
    tree: Snapshot
    gpu_savable: Collection[int] = ()  #: processes whose GPU is emptied before

    @functools.cached_property
    def programs(self) -> list[Program]:
        return [Program(one) for one in self.tree.alive]


class Program:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.pid = process.pid
        self._infos: dict[int, str] = {}
        self._targets: dict[str, os.stat_result | None] = {}

    @functools.cached_property
    def status(self) -> dict[str, str]:
        return procfs.status(self.pid)

    @functools.cached_property
    def threads(self) -> dict[int, dict[str, str]]:
        """The status of each thread, by its id; there may be thousands."""
        found = {tid: procfs.status(self.pid, tid) for tid in ptrace.tasks(self.pid)}
        return {tid: status for tid, status in found.items() if status}

    @functools.cached_property
    def descriptors(self) -> list[procfs.Descriptor]:
        return list(procfs.descriptors(self.pid))

    @functools.cached_property
    def mappings(self) -> list[procfs.Mapping]:
        return list(procfs.mappings(self.pid))

    @functools.cached_property
    def links(self) -> dict[str, str]:
        """Where its links to its files lead, below its folder in /proc."""
        links = {f"fd/{d.fd}": d.target for d in self.descriptors}
        areas = {m.link: m.path for m in self.mappings}
        return {"exe": procfs.link(self.pid, "exe")} | links | areas

    def info(self, fd: int) -> str:
        """What the kernel tells of a descriptor (``fdinfo``); empty: it is closed."""
        if fd not in self._infos:
            self._infos[fd] = procfs.text(self.pid, f"fdinfo/{fd}")
        return self._infos[fd]

    def facts(self, fd: int) -> dict[str, str]:
        return procfs.fields(self.info(fd))

    def flags(self, fd: int) -> int:
        """With which a descriptor was opened (open(2)); 0 where it is gone."""
        return int(self.facts(fd).get("flags", "0"), 8)

    def target(self, link: str) -> os.stat_result | None:
        """The status of what one of its links leads to (``procfs.target_status``)."""
        if link not in self._targets:
            self._targets[link] = procfs.target_status(self.pid, link)
        return self._targets[link]

    def found(self, reason: Reason, **facts: Any) -> Finding:
        """A finding that names it as the session knows it."""
        return finding(reason, **self.process.facts, **facts)

    def holds(self, kind: str) -> Finding:
        """A finding that it has something which cannot be suspended."""
        return self.found(Reason.HANDLE_UNSUPPORTED, kind=kind)

    def does(self, what: str) -> Finding:
        """Likewise, that it does something."""
        return self.found(Reason.PROCESS_UNSUPPORTED, what=what)


@dataclass(kw_only=True)
class Dump(Session):
    """A tree that stands, and what CRIU is told and has written of it."""

    stack: ExitStack  #: unwound once the images are whole, or it has failed
    arguments: list[str] = field(default_factory=list)
    own_ipc: bool = False  #: whether CRIU gets an IPC namespace of its own
    images: SavedImages = field(init=False)  #: what is kept back for ``save``


@dataclass
class Return:
    """A saved tree on its way back.

    A file that is opened here is handed over by its entry's number: CRIU takes a
    descriptor that was passed to it under the name in ``files.img`` (``--inherit-fd``)
    for any plain file, and looks at neither path, flags, size nor position. So every
    entry gets a name of its own that can stand for nothing else.
    """

    init_pid: int
    images: SavedImages
    saved: SavedFiles
    opened: Mapping[bytes, FileFingerprint]  #: by their paths
    stack: ExitStack  #: holds descriptors until CRIU has ended
    place: PathContext
    trial: Trial | None = None  #: of a rehearsal; None: it goes on afterwards
    cut: Collection[int] = ()  #: inodes of connections that were cut
    descriptors: dict[int, int] = field(default_factory=dict)  #: by entry
    #: Entry → the file itself, where what is handed over stands in for it.
    stood_for: dict[int, int] = field(default_factory=dict)
    identities: dict[int, FileIdentity] = field(default_factory=dict)
    deleted: dict[int, int] = field(default_factory=dict)  #: CRIU's number → descriptor
    pipes: dict[int, int] = field(default_factory=dict)  #: likewise, both ends of FIFOs
    when_open: list[Callable[[], None]] = field(default_factory=list)
    #: Image → what is done when CRIU asks for it, and waits.
    when_asked: dict[str, Callable[[], None]] = field(default_factory=dict)
    #: CRIU's name of a pipe whose other end is outside of the tree → descriptor.
    ends: dict[str, int] = field(default_factory=dict)
    tree: Snapshot = field(init=False)  #: that CRIU has made

    @property
    def root(self) -> int:
        return self.place.root

    @property
    def root_pid(self) -> int:
        """The pid of the tree's root in the session; 0: there is no tree."""
        return next((task.pid for task in self.images.tasks()), 0)

    def hand_over(self, number: int, descriptor: int) -> None:
        """Give CRIU that in place of an entry; it is closed with the stack."""
        self.stack.callback(os.close, descriptor)
        self.descriptors[number] = descriptor
        self.identities[number] = identity(descriptor)

    def file(self, number: int) -> int:
        return self.stood_for.get(number, self.descriptors[number])

    def inherit(self) -> dict[str, int]:
        """CRIU's name of each → descriptor."""
        return self.ends | {
            _NAME.format(number=number)[1:]: descriptor
            for number, descriptor in self.descriptors.items()
        }

    def write_files(self) -> None:
        """Write ``files.img``, in which no entry has a name that a user could make."""
        saved, entries = self.saved, self.saved.entries
        others = {n for n in self.descriptors if not entries[n].HasField("reg")}
        for entry in saved.table_entries():
            if entry.id in others:
                entry.type = images.TYPE_REG
        kept = {one.tty.regf_id for one in entries.values() if one.HasField("tty")}
        payloads = []
        for number, entry in entries.items():
            told = images.plain_file(number) if number in others else entry
            if told.HasField("reg"):
                told = copy.deepcopy(told)
                if number not in kept and number not in saved.left:
                    told.reg.name = _NAME.format(number=number).encode()
                # Judged already, and of what is open the mode does not count.
                told.reg.ClearField("mode")
                told.reg.ClearField("size")
                told.reg.ClearField("build_id")
            payloads.append(images.serialize(told))
        self.images.replace(FILES, images.join(images.FILES_MAGIC, payloads))

    def holders(self, wanted: Collection[int]) -> Iterator[tuple[int, int, int]]:
        """Entry, the pid of a process that has it, and its descriptor there.

        One that the caller leaves in ``wanted`` comes again with its next holder. The
        process stands, and may have been killed.
        """
        pids = {process.ns_pid: process.pid for process in self.tree.processes}
        for (owner, fd), (_, number) in self.saved.descriptors.items():
            if number in wanted and owner in pids:
                yield number, pids[owner], fd

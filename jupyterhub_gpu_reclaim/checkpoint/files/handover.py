"""Opens a saved session's files before CRIU runs, and hands them to it.

CRIU runs as root. For a plain file it looks first whether a descriptor was passed to it
under the name that stands in ``files.img`` (``--inherit-fd``), and takes that one: no
path is followed, no flag, size or position is looked at. So every such entry is given a
name of its own that can stand for nothing else, and where none was passed, CRIU finds
nothing to open. The same holds for what is mapped, run or a folder of a process. An
inotify instance, a semaphore or a large counter (``semaphores``), or a socket with a
path, is declared as a plain file: CRIU takes any descriptor for one.

Only what the kernel alone makes is left to CRIU by name: terminals, and files of
``/proc/PID`` (``process_files``).
"""

from __future__ import annotations

import functools
import os
import socket
import stat
from collections import defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.files import deleted_files, locks, unix_names
from jupyterhub_gpu_reclaim.checkpoint.files import open_files as files
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import (
    Credentials,
    PathContext,
    run_as,
)
from jupyterhub_gpu_reclaim.checkpoint.files.deleted_files import Ghost
from jupyterhub_gpu_reclaim.checkpoint.files.process_files import (
    HeldFile,
    TreeRights,
    refusal,
)
from jupyterhub_gpu_reclaim.checkpoint.files.reopen import (
    FileIdentity,
    Reopener,
    fill_pipe,
    identity,
    new_instance,
)
from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import read_saved
from jupyterhub_gpu_reclaim.checkpoint.files.trial import make_room
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import whole
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.beneath import open_root
from jupyterhub_gpu_reclaim.linux.mounts import has_proc

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Container,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from typing import Any

    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint
    from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import (
        FileRequest,
        SavedFiles,
    )
    from jupyterhub_gpu_reclaim.checkpoint.files.trial import Trial
    from jupyterhub_gpu_reclaim.checkpoint.memory.plan import (
        ImageSource,
        Piece,
        Range,
        StopSignal,
    )

#: No process of /proc has a number like that, so no such path can be made.
_NAME: Final = "/proc/0x{number:x}"


@dataclass
class Handover:
    """Files that were opened, and what CRIU is told of them.

    Attributes:
        saved: what the images hold.
        descriptors: entry → descriptor of ours.
        stood_for: entry → the file itself, where that descriptor is a stand-in.
        files: images that are replaced.
    """

    saved: SavedFiles
    descriptors: dict[int, int] = field(default_factory=dict)
    stood_for: dict[int, int] = field(default_factory=dict)
    identities: dict[int, FileIdentity] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def inherit(self) -> dict[str, int]:
        """CRIU's name of each → descriptor."""
        return {
            _NAME.format(number=number)[1:]: descriptor
            for number, descriptor in self.descriptors.items()
        }

    def held(self) -> dict[bytes, list[int]]:
        """Path → descriptors of the files that were opened there."""
        found = defaultdict(list)
        for wish in self.saved.wishes:
            if wish.ghost < 0:
                found[wish.path].append(self.file(wish.id))
        return found

    def file(self, number: int) -> int:
        """A descriptor of the file itself."""
        return self.stood_for.get(number, self.descriptors[number])


class ReplacedImages:
    """A source of images (``plan.ImageSource``) of which some are replaced."""

    def __init__(self, source: ImageSource, files: Mapping[str, bytes]) -> None:
        self._source = source
        self._files = files

    def size(self, name: str) -> int | None:
        """See ``ImageSource``."""
        if name in self._files:
            return len(self._files[name])
        return self._source.size(name)

    def stream(
        self, name: str, skip: Sequence[Range] = ()
    ) -> Iterable[bytes | memoryview]:
        """See ``ImageSource``."""
        if name in self._files:
            return [self._files[name]]
        return self._source.stream(name, skip)

    def copy(self, name: str, pieces: Sequence[Piece], stop: StopSignal) -> None:
        """See ``ImageSource``."""
        self._source.copy(name, pieces, stop)


def open_all(
    source: ImageSource,
    init_pid: int,
    opened: Sequence[FileFingerprint],
    stack: ExitStack,
    *,
    trial: Trial | None = None,
) -> Handover:
    """Open everything; the descriptors are closed with the stack.

    Args:
        source: of CRIU's images.
        init_pid: of the session; its root is where paths are looked up.
        opened: the fingerprints of the files.
        stack: holds the descriptors.
        trial: of a rehearsal; None for a return.

    Raises:
        RestoreFailed: a file is gone, may not be opened, or the images are off.
    """
    read = functools.partial(whole, source)
    saved = read_saved(read)
    make_room(len(saved.wishes))
    handover = Handover(saved)
    root = open_root(f"/proc/{init_pid}/root")
    stack.callback(os.close, root)
    known = {one.path: one for one in opened}
    _check_left(saved, init_pid)
    network = os.open(f"/proc/{init_pid}/ns/net", os.O_RDONLY)
    stack.callback(os.close, network)
    place = PathContext(root, network)
    _Opener(handover, place, known, source, stack, trial=trial).run(read)
    if trial is None or trial.names is None:
        files.refuse_changed(opened, handover.held(), root)
        _refuse_other_sizes(handover, known)
    if trial is None:
        locks.take(read(locks.IMAGE), saved, handover.descriptors)
    handover.files = {**saved.rewritten, "files.img": _files_image(saved)}
    return handover


class _Opener:
    def __init__(
        self,
        handover: Handover,
        place: PathContext,
        known: Mapping[bytes, FileFingerprint],
        source: ImageSource,
        stack: ExitStack,
        *,
        trial: Trial | None,
    ) -> None:
        self._handover = handover
        self._saved = handover.saved
        self._place = place
        self._root = place.root
        self._known = known
        self._source = source
        self._stack = stack
        self._pipes: dict[int, int] = {}
        self._trial = trial
        self._watching: int | None = None
        if trial is not None and self._saved.instances:
            self._watching = new_instance(0)
            stack.callback(os.close, self._watching)

    def run(self, read: Callable[[str], bytes | None]) -> None:
        with ExitStack() as inner:
            ghosts, made = self._make_ghosts(inner)
            for number, counter in self._saved.counters.items():
                self._keep(number, counter.make())
            # Before any folder is watched.
            self._make_sockets()
            for who, wishes in self._by_holder().items():
                opener = Reopener(
                    who, self._root, self._known, self._pipes, self._trial
                )
                run_as(who, lambda: self._open(opener, wishes, made))  # noqa: B023
            for both in self._pipes.values():
                inner.callback(os.close, both)
            for number, data, size in _pipe_contents(read("fifo-data.img")):
                if number in self._pipes:
                    fill_pipe(self._pipes[number], data, size)
            for number, (ghost, owner) in ghosts.items():
                run_as(owner, lambda: ghost.finish(made[number]))  # noqa: B023

    def _by_holder(self) -> dict[Credentials, list[FileRequest]]:
        found: dict[Credentials, list[FileRequest]] = defaultdict(list)
        for wish in self._saved.wishes:
            found[wish.holder].append(wish)
        for number in self._saved.instances:
            found.setdefault(self._saved.holder(number), [])
        return found

    def _open(
        self, opener: Reopener, wishes: Iterable[FileRequest], made: Mapping[int, int]
    ) -> None:
        for wish in wishes:
            given = opener.open(wish, made.get(wish.ghost))
            self._keep(wish.id, given.descriptor)
            if given.file >= 0:
                self._stack.callback(os.close, given.file)
                self._handover.stood_for[wish.id] = given.file
        for number, (flags, watches) in self._saved.instances.items():
            if self._saved.holder(number) == opener.who:
                self._keep(number, opener.watch(watches, flags, self._watching))

    def _make_sockets(self) -> None:
        """Make all sockets, then connect them to each other."""
        wanted, place = self._saved.sockets, self._place
        if not wanted:
            return
        if self._trial is not None:
            for number, one in wanted.items():
                who = self._saved.holder(number)
                run_as(who, lambda: unix_names.refuse_closed(one, self._root))  # noqa: B023
            wanted = unix_names.moved(wanted)
            place = place._replace(root=self._trial.scratch)
        for number, one in wanted.items():
            who = self._saved.holder(number)
            end = run_as(who, lambda: unix_names.make(one, place.root), place)  # noqa: B023
            self._keep(number, end.detach())
        for number, one in wanted.items():
            with self._copy(number) as end:
                if one.server in wanted:
                    with self._copy(one.server) as server, suppress(OSError):
                        unix_names.connect_inside(end, server)
                else:
                    who = self._saved.holder(number)
                    run_as(who, lambda: unix_names.connect(end, one, place.root))  # noqa: B023
                unix_names.finish(end, one, place.root)

    def _copy(self, number: int) -> socket.socket:
        return socket.socket(fileno=os.dup(self._handover.descriptors[number]))

    def _keep(self, number: int, descriptor: int) -> None:
        self._stack.callback(os.close, descriptor)
        self._handover.descriptors[number] = descriptor
        self._handover.identities[number] = identity(descriptor)

    def _make_ghosts(
        self, inner: ExitStack
    ) -> tuple[dict[int, tuple[Ghost, Credentials]], dict[int, int]]:
        """Deleted files, with their contents: number → image and owner; descriptor."""
        ghosts, made = {}, {}
        for wish in self._saved.wishes:
            number = wish.ghost
            if number < 0 or number in made:
                continue
            name = f"ghost-file-{number:x}.img"
            if self._source.size(name) is None:
                raise images.damaged(f"{name} is missing")
            ghost = Ghost(self._source.stream(name))
            self._refuse_unreadable(number, ghost.entry)
            owner = self._owner(number, ghost.entry.uid, wish.path)
            descriptor = run_as(owner, lambda: self._make_ghost(ghost, wish.path))  # noqa: B023
            inner.callback(os.close, descriptor)
            ghost.fill(descriptor)
            ghosts[number], made[number] = (ghost, owner), descriptor
        return ghosts, made

    def _make_ghost(self, ghost: Ghost, path: bytes) -> int:
        if self._trial is None:
            return ghost.make(self._root, path)
        return ghost.make(self._trial.scratch, b"/" + path.rpartition(b"/")[2])

    def _refuse_unreadable(self, number: int, ghost: Any) -> None:
        """Refuse a deleted file to a task that had it open but could not read it.

        Raises:
            RestoreFailed: a task would get one (``file_denied``).
        """
        for wish in self._saved.wishes:
            if wish.ghost != number or wish.is_contents:
                continue
            if deleted_files.can_read(self._saved.entries[wish.id].reg.flags):
                continue
            holders = self._saved.holders.get(wish.id, {wish.holder})
            if not all(deleted_files.may_read(one, ghost) for one in holders):
                raise refused(Reason.FILE_DENIED, wish.path, "its user may not read it")

    def _owner(self, number: int, uid: int, path: bytes) -> Credentials:
        """The owner of a deleted file, among the tasks that hold it.

        Raises:
            RestoreFailed: none of several users owned it: what one of them may change
                from now on, the others would still trust.
        """
        holders = {
            one
            for wish in self._saved.wishes
            if wish.ghost == number
            for one in self._saved.holders.get(wish.id, {wish.holder})
        }
        own = {one for one in holders if one.uid == uid}
        if not own and len({one.uid for one in holders}) > 1:
            raise refused(Reason.FILE_DENIED, path, "several users hold it")
        return min(own or holders, key=lambda one: one.rank)


def _refuse_other_sizes(handover: Handover, known: Container[bytes]) -> None:
    """Judge the files of which there is no fingerprint, as CRIU would.

    Raises:
        RestoreFailed: one is shorter or longer than it was (``file_changed``).
    """
    for wish in handover.saved.wishes:
        reg = handover.saved.entries[wish.id].reg
        if wish.ghost >= 0 or wish.path in known or not reg.HasField("size"):
            continue
        status = os.fstat(handover.file(wish.id))
        if stat.S_ISREG(status.st_mode) and status.st_size != reg.size:
            raise refused(Reason.FILE_CHANGED, wish.path)


def _files_image(saved: SavedFiles) -> bytes:
    """``files.img`` in which no entry has a name that a user could have made."""
    kept = {
        entry.tty.regf_id for entry in saved.entries.values() if entry.HasField("tty")
    }
    payloads = []
    for number, entry in saved.entries.items():
        told = images.plain_file(number) if number in saved.handed else entry
        if told.HasField("reg"):
            told = type(told).FromString(told.SerializeToString())
            if number not in kept and number not in saved.left:
                told.reg.name = _NAME.format(number=number).encode()
            # Judged already, and of what is open the mode does not count.
            told.reg.ClearField("mode")
            told.reg.ClearField("size")
            told.reg.ClearField("build_id")
        payloads.append(images.serialize(told))
    return images.join(images.FILES_MAGIC, payloads)


def _check_left(saved: SavedFiles, init_pid: int) -> None:
    """Judge what CRIU opens by its name below ``/proc/PID``.

    Raises:
        RestoreFailed: it cannot be given back (``file_denied``).
    """
    left = set(saved.left)
    if not left:
        return
    tree = TreeRights(saved.credentials, saved.hidden, has_proc(init_pid))
    held: list[tuple[int, int | None]] = [
        (number, pid) for (pid, _), (_, number) in saved.descriptors.items()
    ]
    held += [(use.id, use.pid) for use in saved.uses]
    held += [(number, None) for number in left - {number for number, _ in held}]
    for number, pid in held:
        if number in left:
            reg = saved.entries[number].reg
            why = refusal(HeldFile(reg.name, reg.flags, reg.mode, pid), tree)
            if why:
                raise refused(Reason.FILE_DENIED, reg.name, why)


def _pipe_contents(image: bytes | None) -> Iterator[tuple[int, bytes, int]]:
    """CRIU's number of a FIFO, what was in it, and how much it takes."""
    if image is None:
        return
    at, entries = 8, memoryview(image)
    while at < len(image):
        size = int.from_bytes(entries[at : at + 4], "little")
        entry = images.parse("pipe_data_entry", bytes(entries[at + 4 : at + 4 + size]))
        at += 4 + size
        data = bytes(entries[at : at + entry.bytes])
        if len(data) != entry.bytes:
            raise images.damaged("the contents of a FIFO are cut off")
        at += entry.bytes
        yield entry.pipe_id, data, entry.size

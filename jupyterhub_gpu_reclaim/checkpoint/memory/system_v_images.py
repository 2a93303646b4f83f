"""Brings the System V objects of a saved session back, as they were.

**Out.** CRIU saves the objects of an IPC namespace only when that is not its own. So
where a session has any (``system_v``), CRIU is started in an empty namespace beside it.

**Back.** CRIU would then give the tree a namespace of its own, other than that of its
init, where the next capture and programs beside it would not find it. So it is told
that there is nothing of the kind: the tree is of CRIU's own namespace, and where a
segment was attached, there is memory that nothing can read. Before that, a helper in
the control groups of the session makes the objects, with the same ids, keys, owners and
contents (``system_v_maker``); afterwards each process, which is stopped, is made to
attach them to the same places.

Not kept: values that a program had the kernel undo at its end (SEM_UNDO), which no
interface tells; times and pids of who was last; new limits of the namespace.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import json
import mmap
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.checkpoint.buffers import BufferReader
from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.memory import system_v
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import (
    ANON_PRIVATE,
    PAGE,
    REGULAR,
    ImageSource,
    whole,
)
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs, ptrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyterhub_gpu_reclaim.linux.processes import Snapshot

    #: Takes the number of a segment and a user.
    Lend = Callable[[int, int], None]

#: Bit of a vma_entry's status (CRIU's image.h).
_SYSTEM_V: Final = 1 << 10
_NORESERVE: Final = 0x4000
# <linux/shm.h>
_SHM_RDONLY, _SHM_REMAP, _SHM_EXEC = 0o10000, 0o40000, 0o100000
_PROT_EXEC: Final = 4
#: Seconds in which the threads of one process must stand still, and it do its calls.
_SECONDS: Final = 10.0
_U32: Final = struct.Struct("<I")
_ALIGNED: Final = 8
_MOST_PAGES: Final = 1 << 40  #: bytes of one segment: no machine has more memory

HELPER: Final = Path(__file__).with_name("system_v_maker.py")


class SavedObjects:
    """The objects in a checkpoint, and what CRIU is given instead of them.

    Attributes:
        images: of CRIU's, rewritten; none where nothing was saved.
        wanted: what the helper is to make.

    Args:
        source: of CRIU's images.

    Raises:
        RestoreFailed: the images are off (``checkpoint_damaged``).
    """

    def __init__(self, source: ImageSource) -> None:
        self._source = source
        self._read = functools.partial(whole, source)
        self.images: dict[str, bytes] = {}
        self.wanted: dict[str, list[dict[str, Any]]] = {}
        self._pages: list[str] = []  #: images of contents, a segment each
        self._attached: dict[int, list[tuple[int, int, list[Any]]]] = {}
        inventory = self._read("inventory.img")
        if inventory is None:
            return
        # The only image that does not begin with the magic that all have in common.
        inventory = _U32.pack(images.COMMON_MAGIC) + inventory
        payload = images.only(inventory, images.INVENTORY_MAGIC)
        own = images.parse("inventory_entry", payload).root_ids.ipc_ns_id
        theirs = self._rewrite_ids(own)
        if theirs == own:
            return
        self.wanted = {
            "sem": list(self._sets(theirs)),
            "msg": list(self._queues(theirs)),
            "shm": list(self._segments(theirs)),
        }
        self._attached = self._attachments()
        if self.wanted["sem"]:
            self._restart_waits()

    @property
    def any(self) -> bool:
        """Whether there is anything to be made."""
        return any(self.wanted.values())

    def contents(self) -> Iterator[bytes | memoryview]:
        """Yield the contents of the segments, in the order of ``wanted``."""
        for name in self._pages:
            yield from self._source.stream(name)

    def attach(self, tree: Snapshot, lend: Lend) -> None:
        """Have the processes, which are stopped, attach their segments again.

        Args:
            tree: its processes.
            lend: lets a user attach a segment whose mode has been changed since.

        Raises:
            TraceFailed: (an OSError) one cannot.
        """
        for process in tree.processes:
            found = self._attached.get(process.ns_pid)
            if not found:
                continue
            with ptrace.stopped(process.pid, seconds=_SECONDS) as traced:
                for number, base, areas in found:
                    try:
                        _attach(traced, number, base, areas)
                    except ptrace.TraceFailed as error:
                        if error.errno != errno.EACCES:
                            raise
                        uids = procfs.status(process.pid)["Uid"].split()
                        lend(number, int(uids[1]))
                        _attach(traced, number, base, areas)

    def _tasks(self) -> Iterator[int]:
        tree = self._read("pstree.img")
        for payload in () if tree is None else images.split(tree, images.PSTREE_MAGIC):
            yield images.parse("pstree_entry", payload).pid

    def _rewrite_ids(self, own: int) -> int:
        """Give all tasks CRIU's own namespace; the number of the one they had."""
        found = {own}
        for pid in self._tasks():
            name = f"ids-{pid}.img"
            image = self._read(name)
            if image is None:
                continue
            ids = images.parse(
                "task_kobj_ids_entry", images.only(image, images.IDS_MAGIC)
            )
            if ids.ipc_ns_id == own:
                break  # so nothing was saved, and the others are not looked at
            found.add(ids.ipc_ns_id)
            ids.ipc_ns_id = own
            self.images[name] = images.join(images.IDS_MAGIC, [images.serialize(ids)])
        if len(found) > 2:  # CRIU's and the session's
            raise images.damaged("its processes have several IPC namespaces")
        return max(found - {own}, default=own)

    # --- what there was ---------------------------------------------------------------

    def _entries(self, kind: str, number: int) -> Iterator[tuple[Any, BufferReader]]:
        """The objects of a kind, and where what belongs to each follows."""
        name = f"ipcns-{kind}-{number}.img"
        if self._source.size(name) is None:
            return
        reader = BufferReader(iter(self._source.stream(name)))
        magic = images.IPC_MAGICS[kind]
        if reader.read(8) != _U32.pack(images.COMMON_MAGIC) + _U32.pack(magic):
            raise images.damaged(f"{name} has no head")
        for _ in range(system_v.MOST_OBJECTS):
            if not reader.has_more():
                return
            yield _message(reader, f"ipc_{kind}_entry"), reader
        raise images.damaged(f"{name} holds too much")

    def _sets(self, namespace: int) -> Iterator[dict[str, Any]]:
        total = 0
        for entry, reader in self._entries("sem", namespace):
            total += entry.nsems
            if total > system_v.MOST_SEMAPHORES:
                raise images.damaged("it holds too many semaphores")
            data = _padded(reader, 2 * entry.nsems)
            values = struct.unpack(f"<{entry.nsems}H", data)
            yield {**_description(entry), "values": values}

    def _queues(self, namespace: int) -> Iterator[dict[str, Any]]:
        total = 0
        for entry, reader in self._entries("msg", namespace):
            messages = []
            for _ in range(entry.qnum):
                head = _message(reader, "ipc_msg")
                total += max(1, head.msize)
                if total > system_v.MOST_MESSAGE_BYTES or not 0 < head.mtype < 1 << 63:
                    raise images.damaged("a message is off")
                text = base64.b64encode(_padded(reader, head.msize)).decode()
                messages.append((head.mtype, text))
            about = _description(entry)
            yield {**about, "qbytes": entry.qbytes, "messages": messages}

    def _segments(self, namespace: int) -> Iterator[dict[str, Any]]:
        for entry, _ in self._entries("shm", namespace):
            about = _description(entry)
            pagemap = self._read(f"pagemap-shmem-{about['id']}.img")
            if pagemap is None or not 0 < entry.size < _MOST_PAGES:
                raise images.damaged(f"segment {about['id']} is off")
            number, areas = images.read_pagemap(pagemap)
            pages, last = [], 0
            for area in areas:
                if not area.flags & images.PRESENT:
                    continue
                length = area.pages * PAGE
                if not last <= area.address or area.address % PAGE:
                    raise images.damaged(f"segment {about['id']} is out of order")
                last = area.address + length
                pages.append((area.address, length))
            name, size = f"pages-{number}.img", sum(length for _, length in pages)
            if last > entry.size + PAGE - 1 or size != (self._source.size(name) or 0):
                raise images.damaged(f"segment {about['id']} has other pages")
            self._pages.append(name)
            yield {
                **about,
                "size": entry.size,
                "huge": entry.hugetlb_flag,
                "pages": pages,
            }

    def _restart_waits(self) -> None:
        """Have threads wait on for semaphores, which stopping them has interrupted.

        The kernel takes up nearly all other calls by itself, but not these (signal(7)).
        """
        tree = self._read("pstree.img") or b""
        for payload in images.split(tree, images.PSTREE_MAGIC):
            task = images.parse("pstree_entry", payload)
            for thread in {task.pid, *task.threads}:
                name = f"core-{thread}.img"
                image = self._read(name)
                if image is not None:
                    again = images.restart_wait(image, images.SEMAPHORE_WAITS)
                    self.images[name] = again

    # --- where it was attached --------------------------------------------------------

    def _attachments(self) -> dict[int, list[tuple[int, int, list[Any]]]]:
        """Process → segment, address, areas; their images get a place for each."""
        found: dict[int, list[tuple[int, int, list[Any]]]] = {}
        sizes = {one["id"]: one["size"] for one in self.wanted["shm"]}
        for pid in self._tasks():
            name = f"mm-{pid}.img"
            image = self._read(name)
            if image is None:
                continue
            mm = images.parse("mm_entry", images.only(image, images.MM_MAGIC))
            areas: dict[int, dict[system_v.Part, Any]] = {}
            for vma in mm.vmas:
                if vma.status & _SYSTEM_V:
                    part = system_v.Part(vma.start, vma.end, vma.pgoff)
                    areas.setdefault(vma.shmid, {})[part] = _copy(vma)
                    _reserve(vma)
            for number, parts in areas.items():
                try:
                    where = system_v.attached(parts, sizes[number])
                except (KeyError, ValueError):
                    why = f"process {pid} has not all of segment {number}"
                    raise images.damaged(why) from None
                for base, pieces in where.items():
                    saved = [parts[piece] for piece in pieces]
                    found.setdefault(pid, []).append((number, base, saved))
            if areas:
                data = images.serialize(mm)
                self.images[name] = images.join(images.MM_MAGIC, [data])
        return found


def _description(entry: Any) -> dict[str, Any]:
    desc = entry.desc
    names = ("id", "key", "uid", "gid", "cuid", "cgid", "mode")
    about = {name: int(getattr(desc, name)) for name in names}
    if about["id"] >= 1 << 31:
        raise images.damaged(f"an object has the number {about['id']}")
    # A key is a signed number to libc.
    about["key"] -= (about["key"] >> 31) << 32
    return about


def _message(reader: BufferReader, kind: str) -> Any:
    head = reader.read(_U32.size)
    if len(head) != _U32.size or _U32.unpack(head)[0] > images.MAX_ENTRY_BYTES:
        raise images.damaged(f"an {kind} is off")
    return images.parse(kind, reader.read(_U32.unpack(head)[0]))


def _padded(reader: BufferReader, size: int) -> bytes:
    padded = -(-size // _ALIGNED) * _ALIGNED
    data = reader.read(padded)
    if len(data) != padded:
        raise images.damaged("an image of System V objects is cut off")
    return data[:size]


def _copy(vma: Any) -> Any:
    other = type(vma)()
    other.CopyFrom(vma)
    return other


def _reserve(vma: Any) -> None:
    """Make it private memory that nothing can touch, where nothing else goes."""
    vma.status, vma.prot = REGULAR | ANON_PRIVATE, 0
    vma.flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    vma.pgoff = vma.shmid = 0
    vma.ClearField("madv")
    vma.ClearField("fdflags")


def _attach(traced: ptrace.Traced, number: int, base: int, areas: list[Any]) -> None:
    first = areas[0]
    flags = _SHM_REMAP
    if first.fdflags & os.O_ACCMODE == os.O_RDONLY:
        flags |= _SHM_RDONLY
    if any(vma.prot & _PROT_EXEC for vma in areas):
        flags |= _SHM_EXEC
    traced.call("shmat", number, base, flags)
    for vma in areas:
        length = vma.end - vma.start
        traced.call("mprotect", vma.start, length, vma.prot)
        for advice in range(vma.madv.bit_length()):
            if vma.madv >> advice & 1:
                traced.call("madvise", vma.start, length, advice)


class Maker:
    """The helper at work: its objects stay when they are kept, and go otherwise."""

    def __init__(
        self,
        init_pid: int,
        saved: SavedObjects,
        *,
        limit: float,
        prepare: Callable[[int], None] | None,
    ) -> None:
        """Make all of them.

        Raises:
            RestoreFailed: they could not be made; nothing of them is left.
        """
        namespace = os.open(Path(f"/proc/{init_pid}/ns/ipc"), os.O_RDONLY)
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(HELPER), str(namespace)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # it may outlive us, and our container
                pass_fds=[namespace],
            )
        finally:
            os.close(namespace)
        self._timer = threading.Timer(limit, self._popen.kill)
        self._timer.start()
        try:
            if prepare is not None:
                prepare(self._popen.pid)
            self._send(saved)
            self._expect(b"made")
        except BaseException:
            self.close()
            raise

    def lend(self, number: int, uid: int) -> None:
        """Let a user attach a segment, until they are kept.

        Raises:
            RestoreFailed: the helper has ended.
        """
        self._order(f"lend {number} {uid}", b"lent")

    def keep(self) -> None:
        """Let them stay.

        Raises:
            RestoreFailed: the helper has ended.
        """
        self._order("keep", b"kept")

    def close(self) -> None:
        """Wait for the helper's end; what was not kept is gone then."""
        with contextlib.suppress(OSError):
            self._popen.communicate()
        self._timer.cancel()

    def _send(self, saved: SavedObjects) -> None:
        assert self._popen.stdin is not None
        # A helper that has ended says why.
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(json.dumps(saved.wanted).encode() + b"\n")
            for block in saved.contents():
                self._popen.stdin.write(block)
            self._popen.stdin.flush()

    def _order(self, line: str, answer: bytes) -> None:
        assert self._popen.stdin is not None
        # A helper that has ended says why.
        with contextlib.suppress(OSError):
            self._popen.stdin.write(line.encode() + b"\n")
            self._popen.stdin.flush()
        self._expect(answer)

    def _expect(self, answer: bytes) -> None:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline().strip()
        if line != answer:
            why = "its System V objects could not be made"
            detail = line.decode(errors="replace")
            raise RestoreFailed(Reason.RESTORE_FAILED, why=why, detail=detail)


@contextlib.contextmanager
def made(
    init_pid: int,
    saved: SavedObjects,
    *,
    limit: float,
    prepare: Callable[[int], None] | None,
) -> Iterator[Lend]:
    """The objects are there inside the block, and stay when it ends well.

    Yields what lends one to a user.

    Args:
        init_pid: of the session; its IPC namespace is where they are made.
        saved: what is made.
        limit: seconds that the helper may live.
        prepare: called with its pid, to have the session charged with the memory.

    Raises:
        RestoreFailed: they could not be made; nothing of them is left.
    """
    if not saved.any:
        yield lambda *_: None
        return
    maker = Maker(init_pid, saved, limit=limit, prepare=prepare)
    try:
        yield maker.lend
        maker.keep()
    finally:
        maker.close()

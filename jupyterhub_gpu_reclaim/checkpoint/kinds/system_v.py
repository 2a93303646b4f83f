"""System V objects of a session, and POSIX message queues."""

from __future__ import annotations

import base64
import contextlib
import errno
import itertools
import json
import mmap
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import ANON_PRIVATE, PAGE, REGULAR
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs, ptrace
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.mounts import new_file_system
from jupyterhub_gpu_reclaim.linux.threads import in_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Return, Session
    from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot

_CLONE_NEWIPC: Final = 0x08000000

#: Of each kind; the kernel's own limit for segments, which few programs come near.
MOST_OBJECTS: Final = 4096
#: In all sets together.
MOST_SEMAPHORES: Final = 1 << 20
#: In all queues together.
MOST_MESSAGE_BYTES: Final = 64 << 20

#: How a mapping of a segment is called in /proc/PID/maps.
MAPPED: Final = "/SYSV"


class Part(NamedTuple):
    start: int
    end: int
    offset: int  #: in the segment


class Objects(NamedTuple):
    tables: dict[str, list[dict[str, int]]]  #: ``sem``, ``msg``, ``shm``: /proc/sysvipc
    queues: list[str]  #: names of POSIX message queues
    is_shared: bool  #: whether the namespace is the machine's, or the agent's

    @property
    def segments(self) -> dict[int, int]:
        return {one["shmid"]: one["size"] for one in self.tables["shm"]}

    @property
    def any(self) -> bool:
        return any(self.tables.values())

    def problems(self, uids: Collection[int]) -> Iterator[str]:
        """Say in words what keeps a session of these users from being saved."""
        if self.is_shared:
            everything = [one for table in self.tables.values() for one in table]
            if any({one["uid"], one["cuid"]} & {*uids} for one in everything):
                yield "System V objects in an IPC namespace that it shares with others"
            return  # whose other queues are, is not told
        for name in self.queues[:1]:
            yield f"the POSIX message queue /{name}"
        if any(len(table) > MOST_OBJECTS for table in self.tables.values()):
            yield f"more than {MOST_OBJECTS} System V objects"
        if sum(one["nsems"] for one in self.tables["sem"]) > MOST_SEMAPHORES:
            yield f"more than {MOST_SEMAPHORES} System V semaphores"
        if sum(one["cbytes"] for one in self.tables["msg"]) > MOST_MESSAGE_BYTES:
            yield f"more than {MOST_MESSAGE_BYTES >> 20} MiB in System V message queues"


class SystemV(Kind):
    """System V semaphores, message queues and shared memory.

    They belong to an IPC namespace, and outlive the process that made them. A session
    has such a namespace of its own, so all that is in there is saved with it. Refused
    are POSIX message queues, whose messages can only be read by taking them out, and
    objects in the machine's own namespace, which holds others' objects, too.

    **Out.** CRIU saves the objects of an IPC namespace only when that is not its own.
    So where a session has any, CRIU is started in an empty namespace beside it.

    **Back.** CRIU would then give the tree a namespace of its own, other than that of
    its init, where the next capture and programs beside it would not find it. So it is
    told that there is nothing of the kind, and that memory which nothing can read is
    where a segment was attached. Before that, a helper makes the objects with the same
    ids, keys, owners and contents; afterwards each process, which is stopped, is made
    to attach them.

    Not kept: values that a program had the kernel undo at its end (SEM_UNDO), which no
    interface tells; times and pids of who was last; new limits of the namespace.
    """

    asked_again = True

    def __init__(self) -> None:
        self._own = False  #: whether it has objects, in a namespace of its own
        self._saved: SavedObjects
        self._maker: Maker | None = None

    def preflight(self, seen: Session) -> Iterator[Finding]:
        try:
            objects = look(seen.init_pid)
        except OSError:
            yield finding(Reason.NO_TREE)  # it has just ended
            return
        self._own = objects.any and not objects.is_shared
        for kind in objects.problems({one.process.uid for one in seen.programs}):
            yield finding(Reason.IPC_UNSUPPORTED, kind=kind)
        for one in seen.programs:
            if not is_whole(one.mappings, objects.segments):
                kind = "a part of a segment of System V shared memory"
                yield one.found(Reason.HANDLE_UNSUPPORTED, kind=kind)

    def before_dump(self, dump: Dump) -> None:
        dump.own_ipc = self._own

    def rewrite(self, back: Return) -> None:
        self._saved = saved = SavedObjects(back.images)
        if any(saved.wanted.values()):
            maker = Maker(back.init_pid, saved, limit=back.limit, prepare=back.prepare)
            self._maker = back.stack.enter_context(maker)

    def after_restore(self, back: Return) -> None:
        if self._maker is not None:
            self._saved.attach(back.tree, self._maker)


def look(init_pid: int) -> Objects:
    """List the objects in the IPC namespace of a process.

    Raises:
        OSError: there is no such process, or its namespace may not be entered.
    """
    namespace = os.open(f"/proc/{init_pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)

    def listed() -> Objects:
        tables = {kind: _table(kind) for kind in ("sem", "msg", "shm")}
        return Objects(tables, _queues(), _is_shared(namespace))

    with closing(namespace):
        return in_namespace(namespace, _CLONE_NEWIPC, listed)


def attached(parts: Iterable[Part], size: int) -> dict[int, list[Part]]:
    """Addresses where a process has attached a segment, and its parts there. Pure.

    Raises:
        ValueError: a part has been unmapped: it cannot be attached again like that.
    """
    whole = -(-size // os.sysconf("SC_PAGESIZE")) * os.sysconf("SC_PAGESIZE")
    found: dict[int, list[Part]] = {}
    for one in sorted(parts):
        found.setdefault(one.start - one.offset, []).append(one)
    for base, pieces in found.items():
        end = base
        for one in pieces:
            if one.start != end:
                raise ValueError("a hole")
            end = one.end
        if end != base + whole:
            raise ValueError("a part")
    return found


def is_whole(mappings: Iterable[procfs.Mapping], segments: dict[int, int]) -> bool:
    """Whether all that is attached can be attached again."""
    parts: dict[int, list[Part]] = {}
    for one in mappings:
        if one.path.startswith(MAPPED):
            part = Part(one.start, one.end, one.offset)
            parts.setdefault(one.inode, []).append(part)
    try:
        for number, pieces in parts.items():
            attached(pieces, segments[number])
    except (KeyError, ValueError):
        return False
    return True


def _table(kind: str) -> list[dict[str, int]]:
    head, *lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
    names = head.split()
    return [dict(zip(names, map(int, line.split()), strict=True)) for line in lines]


def _queues() -> list[str]:
    """Names of the POSIX queues; /dev/mqueue need not be mounted for them."""
    try:
        mount = new_file_system("mqueue")
    except OSError:
        return []  # a kernel without them
    with closing(mount):
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=mount)
    with closing(folder):
        return sorted(os.listdir(folder))  # noqa: PTH208 - by its descriptor


def _is_shared(namespace: int) -> bool:
    here = procfs.link(os.getpid(), f"fd/{namespace}")
    return here in {procfs.link(os.getpid(), "ns/ipc"), procfs.link(1, "ns/ipc")}


#: Bit of a vma_entry's status (CRIU's image.h).
_SYSTEM_V: Final = 1 << 10
_NORESERVE: Final = 0x4000
# <linux/shm.h>
_SHM_RDONLY, _SHM_REMAP, _SHM_EXEC = 0o10000, 0o40000, 0o100000
_PROT_EXEC: Final = 4
_U32: Final = struct.Struct("<I")
_ALIGNED: Final = 8
_MOST_PAGES: Final = 1 << 40  #: bytes of one segment: no machine has more memory

HELPER: Final = Path(__file__).with_name("system_v_maker.py")


class SavedObjects:
    """The objects in a checkpoint, and what CRIU is given instead of them.

    Raises:
        RestoreFailed: the images are off (``checkpoint_damaged``).
    """

    def __init__(self, source: SavedImages) -> None:
        self._source = source
        self.wanted: dict[str, list[dict[str, Any]]] = {}  #: what the helper is to make
        self._pages: list[str] = []  #: images of contents, a segment each
        self._attached: dict[int, list[tuple[int, int, list[Any]]]] = {}
        inventory = source.read("inventory.img")
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

    def contents(self) -> Iterator[bytes | memoryview]:
        """Yield the contents of the segments, in the order of ``wanted``."""
        for name in self._pages:
            yield from self._source.stream(name)

    def attach(self, tree: Snapshot, maker: Maker) -> None:
        """Have the processes, which are stopped, attach their segments again.

        Raises:
            TraceFailed: (an OSError) one cannot.
        """
        for process in tree.processes:
            found = self._attached.get(process.ns_pid)
            if not found:
                continue
            with ptrace.stopped(process.pid) as traced:
                for number, base, areas in found:
                    try:
                        _attach(traced, number, base, areas)
                    except ptrace.TraceFailed as error:
                        if error.errno != errno.EACCES:
                            raise
                        uids = procfs.status(process.pid)["Uid"].split()
                        maker.lend(number, int(uids[1]))
                        _attach(traced, number, base, areas)

    def _rewrite_ids(self, own: int) -> int:
        found = {own}
        for task in self._source.tasks():
            for ids in self._source.entries(
                f"ids-{task.pid}.img", images.IDS_MAGIC, "task_kobj_ids_entry"
            ):
                found.add(ids.ipc_ns_id)
                ids.ipc_ns_id = own
        if len(found) > 2:  # CRIU's and the session's
            raise images.damaged("its processes have several IPC namespaces")
        return max(found - {own}, default=own)

    # --- what there was ---------------------------------------------------------------

    def _entries(self, kind: str, number: int) -> Iterator[tuple[Any, images.Entries]]:
        name = f"ipcns-{kind}-{number}.img"
        if self._source.size(name) is None:
            return
        reader = images.Entries(self._source.stream(name), images.IPC_MAGICS[kind])
        for _ in range(MOST_OBJECTS):
            if not reader.has_more():
                return
            yield reader.message(f"ipc_{kind}_entry"), reader
        raise images.damaged(f"{name} holds too much")

    def _sets(self, namespace: int) -> Iterator[dict[str, Any]]:
        total = 0
        for entry, reader in self._entries("sem", namespace):
            total += entry.nsems
            if total > MOST_SEMAPHORES:
                raise images.damaged("it holds too many semaphores")
            data = _padded(reader, 2 * entry.nsems)
            values = struct.unpack(f"<{entry.nsems}H", data)
            yield {**_description(entry), "values": values}

    def _queues(self, namespace: int) -> Iterator[dict[str, Any]]:
        total = 0
        for entry, reader in self._entries("msg", namespace):
            messages = []
            for _ in range(entry.qnum):
                head = reader.message("ipc_msg")
                total += max(1, head.msize)
                if total > MOST_MESSAGE_BYTES or not 0 < head.mtype < 1 << 63:
                    raise images.damaged("a message is off")
                text = base64.b64encode(_padded(reader, head.msize)).decode()
                messages.append((head.mtype, text))
            about = _description(entry)
            yield {**about, "qbytes": entry.qbytes, "messages": messages}

    def _segments(self, namespace: int) -> Iterator[dict[str, Any]]:
        for entry, _ in self._entries("shm", namespace):
            about = _description(entry)
            pagemap = self._source.read(f"pagemap-shmem-{about['id']}.img")
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
        for _, cores in self._source.cores():
            for core in cores:
                images.begin_wait_again(core, images.SEMAPHORE_WAITS)

    # --- where it was attached --------------------------------------------------------

    def _attachments(self) -> dict[int, list[tuple[int, int, list[Any]]]]:
        found: dict[int, list[tuple[int, int, list[Any]]]] = {}
        sizes = {one["id"]: one["size"] for one in self.wanted["shm"]}
        for pid in [task.pid for task in self._source.tasks()]:
            mm = self._source.memory(pid)
            if mm is None:
                continue
            areas: dict[int, dict[Part, Any]] = {}
            for vma in mm.vmas:
                if vma.status & _SYSTEM_V:
                    part = Part(vma.start, vma.end, vma.pgoff)
                    areas.setdefault(vma.shmid, {})[part] = _copy(vma)
                    _reserve(vma)
            for number, parts in areas.items():
                try:
                    where = attached(parts, sizes[number])
                except (KeyError, ValueError):
                    why = f"process {pid} has not all of segment {number}"
                    raise images.damaged(why) from None
                for base, pieces in where.items():
                    saved = [parts[piece] for piece in pieces]
                    found.setdefault(pid, []).append((number, base, saved))
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


def _padded(reader: images.Entries, size: int) -> bytes:
    return reader.data(-(-size // _ALIGNED) * _ALIGNED)[:size]


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
    """The helper at work: its objects stay when the block ends well, and go otherwise.

    Raises:
        RestoreFailed: they could not be made; nothing of them is left.
    """

    def __init__(
        self,
        init_pid: int,
        saved: SavedObjects,
        *,
        limit: float,
        prepare: Callable[[int], None] | None,
    ) -> None:
        self._saved = saved
        self._prepare = prepare
        with closing(os.open(f"/proc/{init_pid}/ns/ipc", os.O_RDONLY)) as namespace:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(HELPER), str(namespace)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # it may outlive us, and our container
                pass_fds=[namespace],
            )
        self._timer = threading.Timer(limit, self._popen.kill)

    def __enter__(self) -> Self:
        self._timer.start()
        try:
            if self._prepare is not None:
                self._prepare(self._popen.pid)
            wanted = json.dumps(self._saved.wanted).encode() + b"\n"
            self._order(itertools.chain([wanted], self._saved.contents()), b"made")
        except BaseException:
            self._close()
            raise
        return self

    def lend(self, number: int, uid: int) -> None:
        """Let a user attach a segment, until they are kept.

        Raises:
            RestoreFailed: the helper has ended.
        """
        self._order([f"lend {number} {uid}\n".encode()], b"lent")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._order([b"keep\n"], b"kept")
        finally:
            self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._popen.communicate()
        self._timer.cancel()

    def _order(self, words: Iterable[bytes | memoryview], answer: bytes) -> None:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        # A helper that has ended says why.
        with contextlib.suppress(BrokenPipeError):
            for word in words:
                self._popen.stdin.write(word)
            self._popen.stdin.flush()
        line = self._popen.stdout.readline().strip()
        if line != answer:
            why = "its System V objects could not be made"
            detail = line.decode(errors="replace")
            raise RestoreFailed(Reason.RESTORE_FAILED, why=why, detail=detail)

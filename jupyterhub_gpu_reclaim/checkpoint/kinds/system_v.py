"""System V objects of a session, and POSIX message queues."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import errno
import mmap
import os
import struct
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.buffers import BufferReader
from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import ANON_PRIVATE, REGULAR, present
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs, ptrace
from jupyterhub_gpu_reclaim.linux.architecture import call
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.libc import checked, libc
from jupyterhub_gpu_reclaim.linux.mounts import new_file_system
from jupyterhub_gpu_reclaim.linux.threads import in_namespace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Return, Session
    from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

_CLONE_NEWIPC: Final = 0x08000000

#: Of each kind; the kernel's own limit for segments, which few programs come near.
MOST_OBJECTS: Final = 4096
#: In all sets together.
MOST_SEMAPHORES: Final = 1 << 20
#: In all queues together, with what the kernel has beside each message.
MOST_MESSAGE_BYTES: Final = 64 << 20
_BESIDE_MESSAGE: Final = 64

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
        queues = self.tables["msg"]
        held = sum(one["cbytes"] + _BESIDE_MESSAGE * one["qnum"] for one in queues)
        if held > MOST_MESSAGE_BYTES:
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
    where a segment was attached. Afterwards a thread makes the objects with the same
    ids, keys, owners and contents. The tree's root, which is stopped, attaches each
    segment for a moment to be filled, so that its memory counts as the session's; and
    each process is made to attach what it had.

    Not kept: values that a program had the kernel undo at its end (SEM_UNDO), which no
    interface tells; times and pids of who was last; new limits of the namespace.
    """

    asked_again = True

    def __init__(self) -> None:
        self._own = False  #: whether it has objects, in a namespace of its own
        self._saved: SavedObjects

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
                yield one.holds("a part of a segment of System V shared memory")

    def before_dump(self, dump: Dump) -> None:
        dump.own_ipc = self._own

    def rewrite(self, back: Return) -> None:
        self._saved = SavedObjects(back.images)

    def after_restore(self, back: Return) -> None:
        saved = self._saved
        if not saved.wanted:
            return
        namespace = os.open(f"/proc/{back.init_pid}/ns/ipc", os.O_RDONLY)
        maker = _Maker(back.stack.enter_context(closing(namespace)))
        back.stack.push(maker.end)
        try:
            maker.make(saved.wanted)
        except OSError as error:
            why, detail = "its System V objects could not be made", str(error)
            raise RestoreFailed(Reason.RESTORE_FAILED, why=why, detail=detail) from None
        assert back.tree.root is not None
        saved.fill(back.tree.root, maker)
        saved.attach(back.tree, maker)
        maker.finish(saved.wanted)


def look(init_pid: int) -> Objects:
    """List the objects in the IPC namespace of a process.

    Raises:
        OSError: there is no such process, or its namespace may not be entered.
    """
    namespace = os.open(f"/proc/{init_pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)

    here = procfs.link(os.getpid(), f"fd/{namespace}")
    others = {procfs.link(os.getpid(), "ns/ipc"), procfs.link(1, "ns/ipc")}

    def listed() -> Objects:
        tables = {kind: _table(kind) for kind in ("sem", "msg", "shm")}
        return Objects(tables, _queues(), here in others)

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


#: Bit of a vma_entry's status (CRIU's image.h).
_SYSTEM_V: Final = 1 << 10
_NORESERVE: Final = 0x4000
# <linux/shm.h>
_SHM_RDONLY, _SHM_REMAP, _SHM_EXEC = 0o10000, 0o40000, 0o100000
_PROT_EXEC: Final = 4
_U32: Final = struct.Struct("<I")
_ALIGNED: Final = 8


class SavedObjects:
    """The objects in a checkpoint, and what CRIU is given instead of them.

    Raises:
        RestoreFailed: the images are off (``checkpoint_damaged``).
    """

    def __init__(self, source: SavedImages) -> None:
        self._source = source
        self.wanted: list[dict[str, Any]] = []  #: what is to be made
        self._attached: dict[int, list[tuple[int, int, list[Any]]]] = {}
        inventory = source.read("inventory.img")
        if inventory is None:
            return
        # The only image that does not begin with the magic that all have in common.
        inventory = _U32.pack(images.COMMON_MAGIC) + inventory
        reader = images.Entries([inventory], images.INVENTORY_MAGIC)
        own = reader.message("inventory_entry").root_ids.ipc_ns_id
        theirs = self._rewrite_ids(own)
        if theirs == own:
            return
        self.wanted = [
            *self._sets(theirs),
            *self._queues(theirs),
            *self._segments(theirs),
        ]
        self._attached = self._attachments()

    def fill(self, root: Process, maker: _Maker) -> None:
        """Have the tree's root, which is stopped, attach each segment to be filled.

        Raises:
            OSError: (also TraceFailed) it cannot.
        """
        filled = [one for one in self._shared() if one["pages"]]
        if not filled:
            return
        with (
            ptrace.stopped(root.pid) as traced,
            open(f"/proc/{root.pid}/mem", "r+b", 0) as memory,  # noqa: PTH123
        ):
            for one in filled:
                maker.lend(one, root)
                address = traced.call("shmat", one["id"], 0, 0)
                contents = BufferReader(iter(self._source.stream(one["image"])))
                for start, length in one["pages"]:
                    at, end = address + start, address + start + length
                    for block in contents.blocks(length):
                        at += os.pwrite(memory.fileno(), block, at)
                    if at < end:
                        raise images.damaged(f"{one['image']} is cut off")
                traced.call("shmdt", address)

    def attach(self, tree: Snapshot, maker: _Maker) -> None:
        """Have the processes, which are stopped, attach their segments again.

        Raises:
            TraceFailed: (an OSError) one cannot.
        """
        segments = {one["id"]: one for one in self._shared()}
        for process in tree.processes:
            found = self._attached.get(process.ns_pid)
            if not found:
                continue
            with ptrace.stopped(process.pid) as traced:
                for number, base, areas in found:
                    maker.lend(segments[number], process)
                    _attach(traced, number, base, areas)

    def _shared(self) -> list[dict[str, Any]]:
        return [one for one in self.wanted if one["kind"] == "shm"]

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
        while reader.has_more():
            yield reader.message(f"ipc_{kind}_entry"), reader

    def _sets(self, namespace: int) -> Iterator[dict[str, Any]]:
        for entry, reader in self._entries("sem", namespace):
            values = _padded(reader, 2 * entry.nsems)
            yield {**_description("sem", entry), "size": entry.nsems, "values": values}

    def _queues(self, namespace: int) -> Iterator[dict[str, Any]]:
        for entry, reader in self._entries("msg", namespace):
            messages = []
            for _ in range(entry.qnum):
                head = reader.message("ipc_msg")
                messages.append((head.mtype, _padded(reader, head.msize)))
            about = _description("msg", entry)
            yield {**about, "qbytes": entry.qbytes, "messages": messages}

    def _segments(self, namespace: int) -> Iterator[dict[str, Any]]:
        for entry, _ in self._entries("shm", namespace):
            about = _description("shm", entry)
            pagemap = self._source.read(f"pagemap-shmem-{about['id']}.img")
            if pagemap is None:
                raise images.damaged(f"segment {about['id']} has no pages")
            number, areas = images.read_pagemap(pagemap)
            yield {
                **about,
                "size": entry.size,
                "huge": entry.hugetlb_flag,
                "pages": present(areas),
                "image": f"pages-{number}.img",
            }

    # --- where it was attached --------------------------------------------------------

    def _attachments(self) -> dict[int, list[tuple[int, int, list[Any]]]]:
        found: dict[int, list[tuple[int, int, list[Any]]]] = {}
        sizes = {one["id"]: one["size"] for one in self._shared()}
        for pid in [task.pid for task in self._source.tasks()]:
            mm = self._source.memory(pid)
            if mm is None:
                continue
            areas: dict[int, dict[Part, Any]] = {}
            for vma in mm.vmas:
                if vma.status & _SYSTEM_V:
                    part = Part(vma.start, vma.end, vma.pgoff)
                    areas.setdefault(vma.shmid, {})[part] = copy.deepcopy(vma)
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


def _description(kind: str, entry: Any) -> dict[str, Any]:
    desc = entry.desc
    names = ("id", "key", "uid", "gid", "cuid", "cgid", "mode")
    about = {name: int(getattr(desc, name)) for name in names}
    if about["id"] >= 1 << 31:
        raise images.damaged(f"an object has the number {about['id']}")
    # A key is a signed number to libc.
    about["key"] -= (about["key"] >> 31) << 32
    return {"kind": kind, **about}


def _padded(reader: images.Entries, size: int) -> bytes:
    return reader.data(-(-size // _ALIGNED) * _ALIGNED)[:size]


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


# <linux/ipc.h>, <linux/sem.h>, <linux/shm.h>
_CREATE, _EXCLUSIVE, _REMOVE, _SET, _STATUS = 0o1000, 0o2000, 0, 1, 2
_NO_WAIT, _SET_ALL = 0o4000, 17
_SHM_LOCK, _SHM_DEST, _SHM_LOCKED = 11, 0o1000, 0o2000
_MODE, _OWNERS = 0o777, 0o700
_KEEP: Final = -1


class _Status(ctypes.Structure):
    """The part of ``shmid_ds``, ``semid_ds`` and ``msqid_ds`` that IPC_SET reads.

    As libc has them on 64-bit machines.
    """

    _fields_ = (
        ("key", ctypes.c_int),
        *((name, ctypes.c_uint) for name in ("uid", "gid", "cuid", "cgid", "mode")),
        ("times", ctypes.c_ulong * 8),
        ("qbytes", ctypes.c_ulong),  #: of ``msqid_ds``
        ("rest", ctypes.c_ulong * 16),
    )


class _Maker:
    """Makes objects in an IPC namespace, and removes them again after a failure."""

    def __init__(self, namespace: int) -> None:
        self._inside = partial(in_namespace, namespace, _CLONE_NEWIPC)
        self._made: list[tuple[str, int]] = []

    def make(self, wanted: Iterable[dict[str, Any]]) -> None:
        """Make them; segments without their contents.

        Raises:
            OSError: the kernel refuses, or a number is taken.
        """

        def make() -> None:
            # A fresh, writable /proc; that of a container may be read-only.
            with closing(new_file_system("proc")) as proc:
                for one in wanted:
                    self._new(proc, one)
                    if one["kind"] == "sem":
                        values = one["values"]
                        checked(_control("sem", one["id"], _SET_ALL, values), "semctl")
                    elif one["kind"] == "msg":
                        _send(one)

        self._inside(make)

    def lend(self, one: dict[str, Any], process: Process) -> None:
        """Let a process attach a segment until all of them are finished.

        It was allowed to when it attached it.
        """
        uid = int(procfs.status(process.pid)["Uid"].split()[1])
        lent = {**one, "uid": uid, "mode": one["mode"] | _OWNERS}
        self._inside(lambda: _set(lent))

    def finish(self, wanted: Iterable[dict[str, Any]]) -> None:
        """Give all of them their owners; what was removed goes with its last user."""

        def finish() -> None:
            for one in wanted:
                _set(one)
                if one["kind"] != "shm":
                    continue
                if one["mode"] & _SHM_LOCKED:
                    libc.shmctl(one["id"], _SHM_LOCK, None)  # as far as its limit goes
                if one["mode"] & _SHM_DEST:
                    checked(libc.shmctl(one["id"], _REMOVE, None), "shmctl")

        self._inside(finish)

    def end(self, failure: type[BaseException] | None, *_: object) -> None:
        def remove() -> None:
            for kind, number in self._made:
                _control(kind, number, _REMOVE, None)

        if failure is not None:
            with contextlib.suppress(OSError):
                self._inside(remove)

    def _new(self, proc: int, one: dict[str, Any]) -> None:
        _remove_former(one)
        kind = one["kind"]
        size = [ctypes.c_size_t(one["size"])] if "size" in one else []
        counter = os.open(f"sys/kernel/{kind}_next_id", os.O_WRONLY, dir_fd=proc)
        with closing(counter):
            os.write(counter, str(one["id"]).encode())
        flags = _CREATE | _EXCLUSIVE | one["mode"] & _MODE | one.get("huge", 0)
        call("setresgid", _KEEP, one["cgid"], _KEEP)  # this thread's own
        call("setresuid", _KEEP, one["cuid"], _KEEP)
        made = getattr(libc, f"{kind}get")(one["key"], *size, flags)
        number = checked(made, f"{kind}get")
        self._made.append((kind, number))
        call("setresuid", _KEEP, 0, _KEEP)
        call("setresgid", _KEEP, 0, _KEEP)
        if number != one["id"]:
            raise OSError(errno.EEXIST, f"number {one['id']} is taken", f"{kind}get")


def _remove_former(one: dict[str, Any]) -> None:
    """Remove what an attempt that was ended in its middle has left."""
    status = _Status()
    found = _control(one["kind"], one["id"], _STATUS, ctypes.byref(status))
    if found != -1 and (status.key, status.cuid) == (one["key"], one["cuid"]):
        _control(one["kind"], one["id"], _REMOVE, None)


def _send(one: dict[str, Any]) -> None:
    """Fill a queue, which may hold more than its limit is now."""
    messages = one["messages"]
    held = max(len(messages), sum(len(data) for _, data in messages))
    _set({**one, "qbytes": max(one["qbytes"], held)})
    for kind, data in messages:
        size = ctypes.c_size_t(len(data))
        sent = libc.msgsnd(one["id"], struct.pack("=q", kind) + data, size, _NO_WAIT)
        checked(sent, "msgsnd")


def _set(one: dict[str, Any]) -> None:
    status = _Status()
    name, number = f"{one['kind']}ctl", one["id"]
    checked(_control(one["kind"], number, _STATUS, ctypes.byref(status)), name)
    status.uid, status.gid = one["uid"], one["gid"]
    status.mode = one["mode"] & _MODE
    status.qbytes = one.get("qbytes", status.qbytes)
    checked(_control(one["kind"], number, _SET, ctypes.byref(status)), name)


def _control(kind: str, number: int, command: int, argument: object) -> int:
    first = (number, 0) if kind == "sem" else (number,)
    return int(getattr(libc, f"{kind}ctl")(*first, command, argument))

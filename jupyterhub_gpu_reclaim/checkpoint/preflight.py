"""Finds out before anything is touched whether a session can be saved.

It reads /proc and the kernel's list of sockets, once, and looks at sockets through
copies of their descriptors; it stops nothing and changes nothing. Everything that
CRIU would fail on and that can be known up front has a rule here
(``docs/explanation/criu.md``):

===============================================  =======================
rule                                             reason
===============================================  =======================
no program, or a dead one, at the root           ``no_tree``
io_uring, open or mapped                         ``io_uring``
userfaultfd                                      ``userfaultfd``
other kernel objects (perf, BPF, KVM, …)         ``handle_unsupported``
System V shared memory, unmapped in part         ``handle_unsupported``
a POSIX message queue, open                      ``handle_unsupported``
one that is there; shared System V objects       ``ipc_unsupported``
a pipe that keeps packets apart (O_DIRECT)       ``handle_unsupported``
a memfd sealed against writes, mapped shared     ``handle_unsupported``
sealed memory, protection keys, uprobes          ``handle_unsupported``
a pidfd of a thread, or of a process outside     ``handle_unsupported``
a program without its main thread                ``process_unsupported``
memory or folders shared between processes       ``process_unsupported``
a thread with a table of files of its own        ``process_unsupported``
a deadline from the scheduler                    ``process_unsupported``
more addresses than CRIU can have twice          ``process_unsupported``
nearly as many open files as it may have         ``process_unsupported``
a program that is in memory only (memfd)         ``process_unsupported``
a user namespace other than ours                 ``user_namespace``
another namespace than the session's             ``foreign_namespace``
a device other than the harmless ones            ``device_open``
a debugger                                       ``traced``
a program that hangs below the init              ``left_out``
a deleted file over the ghost limit              ``ghost_too_large``
a deleted file that it may not read              ``handle_unsupported``
a deleted file that has another name             ``handle_unsupported``
a file of /proc that is not its own to set       ``handle_unsupported``
the name of a socket (O_PATH)                    ``handle_unsupported``
a UNIX socket whose file was renamed or linked   ``handle_unsupported``
one whose name does not lead to its file         ``handle_unsupported``
a watch on a deleted file, a lease for writing   ``handle_unsupported``
a socket of a kind that CRIU does not know       ``socket_unsupported``
a multipath TCP socket                           ``multipath_tcp``
what waits in a socket, and CRIU cannot save     ``socket_unread``
a UNIX connection to a program outside           ``unix_outside``
another user's process, no CAP_SYS_RESOURCE      ``capability_missing``
===============================================  =======================

Supported, so no rule: eventfd, epoll, timerfd, signalfd, pidfd, inotify,
memfd, pipes, fifos, ptys, file locks, seccomp filters, zombies, stopped processes,
System V semaphores, message queues and shared memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import socket
import stat
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu.process import GHOST_LIMIT_BYTES
from jupyterhub_gpu_reclaim.checkpoint.files import (
    deleted_files,
    other_names,
    process_files,
)
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import credentials_now
from jupyterhub_gpu_reclaim.checkpoint.files.devices import refused_devices
from jupyterhub_gpu_reclaim.checkpoint.files.process_files import HeldFile, TreeRights
from jupyterhub_gpu_reclaim.checkpoint.files.watched import (
    watches_deleted,
    watches_kernel,
)
from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import DEVICES as GPU_DEVICES
from jupyterhub_gpu_reclaim.checkpoint.memory import protection, system_v
from jupyterhub_gpu_reclaim.checkpoint.sockets import refusals
from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import tree_inodes
from jupyterhub_gpu_reclaim.checkpoint.sockets.options import kind_of
from jupyterhub_gpu_reclaim.checkpoint.tree.rights import refuse_beyond_agent, user_name
from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import (
    architecture,
    capabilities,
    processes,
    procfs,
    ptrace,
    scheduling,
)
from jupyterhub_gpu_reclaim.linux.beneath import open_root
from jupyterhub_gpu_reclaim.linux.descriptors import borrow_from
from jupyterhub_gpu_reclaim.linux.mounts import has_proc
from jupyterhub_gpu_reclaim.linux.processes import DEAD
from jupyterhub_gpu_reclaim.linux.sock_diag import Diag, unix_sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from jupyterhub_gpu_reclaim.linux.sock_diag import UnixSocket

#: Open files of a session's programs together; each is looked at several times.
MOST_FILES: Final = 65_536

MULTIPATH_TCP: Final = "multipath TCP"

_FAMILIES: Final = frozenset(
    {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
)
_FAMILY_WORDS: Final = {
    int(socket.AF_PACKET): "packet",
    int(socket.AF_VSOCK): "vsock",
    int(socket.AF_ALG): "kernel crypto",
    int(socket.AF_CAN): "CAN bus",
    44: "XDP",
}
#: IP, ICMP, TCP, UDP, ICMPv6, UDP-Lite (CRIU's ``can_dump_ipproto``).
_PROTOCOLS: Final = frozenset({0, 1, 6, 17, 58, 136})
_PROTOCOL_WORDS: Final = {
    socket.IPPROTO_SCTP: "SCTP",
    socket.IPPROTO_MPTCP: MULTIPATH_TCP,
}


def unsupported_kind(pid: int, fd: int) -> str:
    """Kind, in a word, of a socket that CRIU cannot save; empty when it can.

    Also empty when the process or the descriptor has gone.
    """
    with contextlib.suppress(OSError), borrow_from(pid, fd) as one:
        return _socket_kind(one)
    return ""


def _socket_kind(one: socket.socket) -> str:
    family, kind, protocol = kind_of(one)
    if family not in _FAMILIES:
        return _FAMILY_WORDS.get(family, f"family {family}")
    if family not in {socket.AF_INET, socket.AF_INET6}:
        return ""
    if kind == socket.SOCK_RAW:
        return "raw"
    if protocol not in _PROTOCOLS:
        return _PROTOCOL_WORDS.get(protocol, f"protocol {protocol}")
    return ""


_WRITE_LEASE: Final = re.compile(r"^lock:.* LEASE .* WRITE ", re.MULTILINE)
#: Kernel objects behind descriptors that CRIU saves.
_ANONYMOUS_OK: Final = frozenset(
    {"eventfd", "eventpoll", "inotify", "signalfd", "timerfd", "pidfd"}
)
#: <linux/magic.h> (mqueue is private to ipc/mqueue.c), and more than a struct statfs.
_MQUEUE_MAGIC: Final = 0x19800202
_STATFS_BYTES: Final = 256
#: F_SEAL_WRITE and F_SEAL_FUTURE_WRITE.
_WRITE_SEALS: Final = 0x8 | 0x10
_ANONYMOUS: Final = re.compile(r"^anon_inode:\[?([^\]]*)\]?$")
_ANONYMOUS_WORDS: Final = {
    # Made again by root, it would be told of files that its user may not open.
    "fanotify": "a fanotify group",
    "perf_event": "a performance counter",
    "bpf-prog": "a BPF program",
    "bpf-map": "a BPF map",
    "kvm-vm": "a virtual machine",
    "secretmem": "secret memory",
    "landlock-ruleset": "a Landlock rule set",
}

#: Resources that processes may share (clone(2)) without CRIU's knowing it.
_SHARED: Final = {
    scheduling.KCMP_VM: "memory (CLONE_VM)",
    scheduling.KCMP_FS: "folders (CLONE_FS)",
}
#: How long a child of vfork(2) has to run its program.
_SPAWN_SECONDS: Final = 0.05
#: Of the 128 TiB that x86 has for a program, CRIU's own program lies in the middle.
_MOST_ADDRESSES: Final = 80 << 40
#: The soft limit of open files in /proc/<pid>/limits; unlimited has no number.
_LIMIT: Final = re.compile(r"^Max open files +([0-9]+) ", re.MULTILINE)
_OWN_FILES: Final = 3
_PIDFDS: Final = ("anon_inode:[pidfd]", "pidfd:[")
_PIDFD_THREAD: Final = os.O_EXCL  # <linux/pidfd.h>

#: The namespaces that must be those of the session's init. (CRIU gives a restored tree
#: a time namespace, so that one must be the same within the tree only.)
_NAMESPACES: Final = ("mnt", "net", "ipc", "uts", "cgroup", "pid", "pid_for_children")


class _View(NamedTuple):
    """Everything that the rules look at in one process, read once."""

    process: Process
    init: Process
    root: Process
    status: dict[str, str]
    descriptors: list[procfs.Descriptor]
    mappings: list[procfs.Mapping]
    ghost_limit: int
    gpu_savable: bool
    segments: dict[int, int]  #: of the session: bytes by number
    rights: TreeRights
    pids: frozenset[int]  #: of all processes of the tree

    def found(self, reason: Reason, **facts: Any) -> Finding:
        """A finding that names the process as the session knows it."""
        process = self.process
        return finding(reason, pid=process.ns_pid, name=process.name, **facts)


def too_many_files(snapshot: Snapshot) -> list[Finding]:
    """Whether so much is open that to look at it would take too long; empty is good."""
    left = MOST_FILES
    for process in snapshot.processes:
        left -= procfs.count_descriptors(process.pid, left + 1)
        if left < 0:
            what = f"has, with the others, more than {MOST_FILES} files open"
            pid, name = process.ns_pid, process.name
            return [finding(Reason.PROCESS_UNSUPPORTED, pid=pid, name=name, what=what)]
    return []


def examine(
    init_pid: int,
    snapshot: Snapshot,
    criu_findings: Iterable[Finding] = (),
    *,
    gpu_savable: Collection[int] = (),
    ghost_limit: int = GHOST_LIMIT_BYTES,
) -> list[Finding]:
    """Everything that keeps a session from being saved now; empty is good.

    Args:
        init_pid: of the session.
        snapshot: its tree.
        criu_findings: what the check of CRIU on this machine found.
        gpu_savable: host pids of processes whose GPU is emptied before.
        ghost_limit: bytes that CRIU may copy of one deleted file.
    """
    root = snapshot.root
    # Whether the missing capability matters depends on the tree: it is judged below.
    missing = Reason.CAPABILITY_MISSING.value
    findings = [one for one in criu_findings if one.code != missing]
    if root is None or root.state in DEAD:
        return [*findings, finding(Reason.NO_TREE)]
    alive = [p for p in snapshot.processes if p.state not in DEAD]
    try:
        objects = system_v.look(init_pid)
    except OSError:
        return [*findings, finding(Reason.NO_TREE)]  # it has just ended
    uids = {process.uid for process in alive}
    findings += [
        finding(Reason.IPC_UNSUPPORTED, kind=kind) for kind in objects.problems(uids)
    ]
    rights = _rights(init_pid, alive)
    for process in alive:
        view = _View(
            process,
            snapshot.init,
            root,
            procfs.status(process.pid),
            list(procfs.descriptors(process.pid)),
            list(procfs.mappings(process.pid)),
            ghost_limit,
            process.pid in gpu_savable,
            objects.segments,
            rights,
            frozenset(one.pid for one in snapshot.processes),
        )
        findings += [one for rule in _RULES for one in rule(view)]
    findings += _together(init_pid, snapshot, alive)
    return list(dict.fromkeys(findings))  # each process of a user says the same


def _together(
    init_pid: int, snapshot: Snapshot, alive: list[Process]
) -> Iterator[Finding]:
    """The rules that look at more than one process."""
    yield from _without_main_thread(snapshot)
    yield from _sharing(alive)
    yield from _left_out(snapshot, alive)
    yield from _signed(init_pid, alive)
    yield from _unix_outside(snapshot, alive)


def _left_out(snapshot: Snapshot, alive: Iterable[Process]) -> Iterator[Finding]:
    """Processes below the init but not below the root, which CRIU does not see."""
    assert snapshot.root is not None
    saved = {snapshot.root.pid}
    for process in snapshot.processes:  # parents before children
        if process.ppid in saved:
            saved.add(process.pid)
    for process in alive:
        if process.pid not in saved:
            yield finding(Reason.LEFT_OUT, pid=process.ns_pid, name=process.name)


def _handles(view: _View) -> Iterator[Finding]:
    targets = [d.target for d in view.descriptors] + [m.path for m in view.mappings]
    kinds = {match[1] for target in targets if (match := _ANONYMOUS.match(target))}
    if any(target.startswith("/secretmem") for target in targets):
        kinds.add("secretmem")
    for kind in sorted(kinds - _ANONYMOUS_OK):
        if kind == "io_uring":
            yield view.found(Reason.IO_URING)
        elif kind == "userfaultfd":
            yield view.found(Reason.USERFAULTFD)
        else:
            words_of_it = _ANONYMOUS_WORDS.get(kind, f"a kernel object ({kind})")
            yield view.found(Reason.HANDLE_UNSUPPORTED, kind=words_of_it)
    if any(_is_queue(view.process.pid, one) for one in view.descriptors):
        kind = "a POSIX message queue"
        yield view.found(Reason.HANDLE_UNSUPPORTED, kind=kind)
    if any(_is_write_sealed(view.process.pid, one) for one in view.mappings):
        kind = "a shared mapping of memory that is sealed against writes (F_SEAL_WRITE)"
        yield view.found(Reason.HANDLE_UNSUPPORTED, kind=kind)
    if not system_v.is_whole(view.mappings, view.segments):
        kind = "a part of a segment of System V shared memory"
        yield view.found(Reason.HANDLE_UNSUPPORTED, kind=kind)


def _protections(view: _View) -> Iterator[Finding]:
    for kind in protection.unsupported(procfs.text(view.process.pid, "smaps")):
        yield view.found(Reason.HANDLE_UNSUPPORTED, kind=kind)


def _without_main_thread(snapshot: Snapshot) -> Iterator[Finding]:
    for process in snapshot.processes:
        if process.state in DEAD and len(ptrace.tasks(process.pid)) > 1:
            what = "goes on without its main thread"
            yield finding(
                Reason.PROCESS_UNSUPPORTED,
                pid=process.ns_pid,
                name=process.name,
                what=what,
            )


def _sharing(alive: Sequence[Process]) -> Iterator[Finding]:
    """Processes that share what CRIU knows to be a process's own.

    A child of vfork(2) does so until it runs its program, which takes no time unless
    something hinders it.
    """
    by_pid = {process.pid: process for process in alive}
    for kind, words in _SHARED.items():
        pairs = scheduling.sharers(by_pid, kind) if architecture.here() else []
        if pairs:
            time.sleep(_SPAWN_SECONDS)
            pairs = scheduling.sharers({pid for pair in pairs for pid in pair}, kind)
        for one, other in pairs:
            parent, child = sorted((by_pid[one], by_pid[other]), key=_ns_pid)
            yield finding(
                Reason.PROCESS_UNSUPPORTED,
                pid=child.ns_pid,
                name=child.name,
                what=f"shares its {words} with process {parent.ns_pid}",
            )


def _ns_pid(process: Process) -> int:
    return process.ns_pid


def _threads(view: _View) -> Iterator[Finding]:
    pid, found = view.process.pid, set()
    for tid in ptrace.tasks(pid):
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(tid) == scheduling.SCHED_DEADLINE:
                found.add("has a deadline from the scheduler (SCHED_DEADLINE)")
            if architecture.here() and not scheduling.shares(
                pid, tid, scheduling.KCMP_FILES
            ):
                found.add("has a thread with open files of its own (unshare)")
    for what in sorted(found):
        yield view.found(Reason.PROCESS_UNSUPPORTED, what=what)


def _addresses(view: _View) -> Iterator[Finding]:
    """CRIU makes all areas of a process aside first, with those of its parent there."""
    total = sum(
        int(procfs.status(pid).get("VmSize", "0 kB").split()[0]) << 10
        for pid in (view.process.pid, view.process.ppid)
    )
    if total > _MOST_ADDRESSES:
        what = f"has reserved too much memory ({text.size(total)} with its parent)"
        yield view.found(Reason.PROCESS_UNSUPPORTED, what=what)


def _room(view: _View) -> Iterator[Finding]:
    """CRIU's own code, which runs in the process, opens a few files of its own."""
    found = _LIMIT.search(procfs.text(view.process.pid, "limits"))
    if found is None:
        return
    # Those with higher numbers it opened before it lowered the limit.
    count = sum(one.fd < int(found[1]) for one in view.descriptors)
    if int(found[1]) < count + _OWN_FILES:
        what = f"has {count} files open, of {found[1]} at most"
        yield view.found(Reason.PROCESS_UNSUPPORTED, what=what)


def _program(view: _View) -> Iterator[Finding]:
    if procfs.link(view.process.pid, "exe").startswith("/memfd:"):
        what = "runs a program that is in memory only (memfd)"
        yield view.found(Reason.PROCESS_UNSUPPORTED, what=what)


def _pidfds(view: _View) -> Iterator[Finding]:
    kinds = set()
    for one in view.descriptors:
        if not one.target.startswith(_PIDFDS):
            continue
        facts = procfs.fdinfo(view.process.pid, one.fd)
        if int(facts.get("flags", "0"), 8) & _PIDFD_THREAD:
            kinds.add("a pidfd of a thread (PIDFD_THREAD)")
        elif facts.get("Pid", "-1") != "-1" and int(facts["Pid"]) not in view.pids:
            kinds.add("a pidfd of a process outside of the session's tree")
    for kind in sorted(kinds):
        yield view.found(Reason.HANDLE_UNSUPPORTED, kind=kind)


def _is_queue(pid: int, descriptor: procfs.Descriptor) -> bool:
    """Whether it is a queue of mq_open(3): its name begins with its only slash."""
    if not descriptor.target.startswith("/") or "/" in descriptor.target[1:]:
        return False
    facts = ctypes.create_string_buffer(_STATFS_BYTES)
    path = os.fsencode(f"/proc/{pid}/fd/{descriptor.fd}")
    found = ctypes.CDLL(None).statfs(path, facts) == 0
    return found and int.from_bytes(facts.raw[:8], "little") == _MQUEUE_MAGIC


def _is_write_sealed(pid: int, one: procfs.Mapping) -> bool:
    """Whether CRIU would map a memfd before it sealed it, which the kernel forbids."""
    if not one.path.startswith("/memfd:") or one.mode[1] == "w" or one.mode[3] != "s":
        return False
    path = procfs.PROC / f"{pid}/map_files/{one.start:x}-{one.end:x}"
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # it is gone meanwhile
    try:
        return bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & _WRITE_SEALS)
    finally:
        os.close(file)


def _namespaces(view: _View) -> Iterator[Finding]:
    pid, init = view.process.pid, view.init.pid
    if _has_own_users(pid):
        yield view.found(Reason.USER_NAMESPACE)
    for kind in (*_NAMESPACES, "time", "time_for_children"):
        proper = view.root.pid if kind.startswith("time") else init
        its = procfs.link(pid, f"ns/{kind}")
        if its and its != procfs.link(
            proper, f"ns/{kind.removesuffix('_for_children')}"
        ):
            plain = kind.removesuffix("_for_children")
            plain = {"mnt": "mount", "net": "network"}.get(plain, plain)
            yield view.found(Reason.FOREIGN_NAMESPACE, kind=plain)


def _has_own_users(pid: int) -> bool:
    ours = procfs.link(os.getpid(), "ns/user")
    return procfs.link(pid, "ns/user") not in {"", ours}


def _devices(view: _View) -> Iterator[Finding]:
    held = refused_devices(view.process.pid, view.descriptors, view.mappings)
    for device in held:
        if view.gpu_savable and device.startswith(GPU_DEVICES):
            continue
        yield view.found(Reason.DEVICE_OPEN, device=device)


def _traced(view: _View) -> Iterator[Finding]:
    if view.status.get("TracerPid", "0") != "0":
        yield view.found(Reason.TRACED)


def _links(view: _View) -> dict[str, str]:
    """What its links to open and mapped files read, below its folder in /proc."""
    links = {f"fd/{d.fd}": d.target for d in view.descriptors}
    links |= {f"map_files/{m.start:x}-{m.end:x}": m.path for m in view.mappings}
    return links


def _other_names(view: _View) -> Iterator[Finding]:
    found = other_names.find(view.init.pid, view.process.pid, _links(view))
    for path in sorted({one.path for one in found if not one.name}):
        yield view.found(Reason.HANDLE_UNSUPPORTED, kind=other_names.words(path))


def _ghosts(view: _View) -> Iterator[Finding]:
    large = {}
    for link, target in _links(view).items():
        if not target.startswith("/") or not target.endswith(" (deleted)"):
            continue
        if target.startswith(("/memfd:", "/dev/zero", "/SYSV", "/secretmem", "/anon_")):
            continue  # memory, which CRIU saves as memory or another rule refuses
        status = procfs.target_status(view.process.pid, link)
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_nlink:
            continue
        size = status.st_blocks * 512
        if size > view.ghost_limit:
            large[target.removesuffix(" (deleted)")] = size
    for path, size in sorted(large.items()):
        yield view.found(
            Reason.GHOST_TOO_LARGE,
            path=path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
            size=text.size(size),
            limit=text.size(view.ghost_limit),
        )


def _unreadable(view: _View) -> Iterator[Finding]:
    for path in sorted(
        deleted_files.held_unreadable(view.process.pid, view.descriptors)
    ):
        yield view.found(
            Reason.HANDLE_UNSUPPORTED, kind=deleted_files.unreadable_words(path)
        )


def _rights(init_pid: int, alive: Iterable[Process]) -> TreeRights:
    known, hidden = {}, set()
    for process in alive:
        with contextlib.suppress(ProcessLookupError):
            known[process.ns_pid] = credentials_now(process.pid)
        memory = procfs.target_status(process.pid, "mem")
        if process.uid and memory is not None and not memory.st_uid:
            hidden.add(process.ns_pid)
    return TreeRights(known, hidden, has_proc(init_pid))


def _process_files(view: _View) -> Iterator[Finding]:
    pid = view.process.pid
    for one in view.descriptors:
        path = os.fsencode(one.target)
        status = procfs.target_status(pid, f"fd/{one.fd}")
        if process_files.process_of(path) is None or status is None:
            continue
        flags = int(procfs.fdinfo(pid, one.fd).get("flags", "0"), 8)
        file = HeldFile(path, flags, status.st_mode, view.process.ns_pid)
        why = process_files.refusal(file, view.rights)
        if why:
            kind = f"the file {one.target} ({why})"
            yield view.found(Reason.HANDLE_UNSUPPORTED, kind=kind)


def _odd_files(view: _View) -> Iterator[Finding]:
    pid = view.process.pid
    kinds = {_odd_kind(pid, one) for one in view.descriptors}
    watches = any(one.target == "anon_inode:inotify" for one in view.descriptors)
    if watches and watches_deleted(pid, view.init.pid):
        kinds.add("a watch (inotify) on a deleted file that is still open")
    if watches and watches_kernel(pid, view.init.pid):
        kinds.add("a watch (inotify) in /proc, /sys or /dev/pts")
    for kind in sorted(kinds - {""}):
        yield view.found(Reason.HANDLE_UNSUPPORTED, kind=kind)


def _odd_kind(pid: int, one: procfs.Descriptor) -> str:
    """Kind, in words, of a pipe or file that CRIU cannot save; empty when it can."""
    if not one.target.startswith(("pipe:", "/")):
        return ""
    flags = int(procfs.fdinfo(pid, one.fd).get("flags", "0"), 8)
    status = procfs.target_status(pid, f"fd/{one.fd}")
    if status is not None and stat.S_ISFIFO(status.st_mode):
        # CRIU would make a stream of it.
        return (
            "a pipe that keeps packets apart (O_DIRECT)" if flags & os.O_DIRECT else ""
        )
    if status is not None and stat.S_ISSOCK(status.st_mode):
        return f"the name of a socket ({one.target}, O_PATH)"
    # CRIU opens the file, and the kernel lets it wait for the stopped holder.
    is_leased = _WRITE_LEASE.search(procfs.text(pid, f"fdinfo/{one.fd}"))
    return f"a write lease (F_SETLEASE) on {one.target}" if is_leased else ""


def _sockets(view: _View) -> Iterator[Finding]:
    kinds = {
        unsupported_kind(view.process.pid, d.fd)
        for d in view.descriptors
        if d.target.startswith("socket:")
    }
    for kind in sorted(kinds - {""}):
        if kind == MULTIPATH_TCP:
            yield view.found(Reason.MULTIPATH_TCP)
        else:
            yield view.found(Reason.SOCKET_UNSUPPORTED, kind=kind)


def _held_by_sockets(view: _View) -> Iterator[Finding]:
    numbers = [d.fd for d in view.descriptors if d.target.startswith("socket:")]
    try:
        root = open_root(f"/proc/{view.init.pid}/root")
    except OSError:
        return  # it has just ended
    try:
        never, later = refusals.of_process(view.process.pid, numbers, root)
    finally:
        os.close(root)
    for kind in sorted(never):
        yield view.found(Reason.HANDLE_UNSUPPORTED, kind=kind)
    for where in sorted(later):
        yield view.found(Reason.SOCKET_UNREAD, where=where)


def _owner(view: _View) -> Iterator[Finding]:
    """CRIU asks for the limits of each process (prlimit(2))."""
    uid = view.process.uid
    ids = {number for kind in ("Uid", "Gid") for number in _first_three(view, kind)}
    if ids <= {"0"} or capabilities.has("SYS_RESOURCE"):
        return
    capability, user = "CAP_SYS_RESOURCE", user_name(uid)
    yield finding(Reason.CAPABILITY_MISSING, capability=capability, user=user)


def _beyond_agent(view: _View) -> Iterator[Finding]:
    # In a user namespace of its own it holds everything, and nothing outside.
    if view.status and not _has_own_users(view.process.pid):
        yield from refuse_beyond_agent(view.status)


def _first_three(view: _View, kind: str) -> list[str]:
    """Real, effective and saved."""
    return view.status.get(kind, "").split()[:3]


_RULES: Final[tuple[Callable[[_View], Iterator[Finding]], ...]] = (
    _handles,
    _protections,
    _pidfds,
    _threads,
    _addresses,
    _room,
    _program,
    _namespaces,
    _devices,
    _traced,
    _ghosts,
    _other_names,
    _unreadable,
    _process_files,
    _odd_files,
    _sockets,
    _held_by_sockets,
    _owner,
    _beyond_agent,
)


def _signed(init_pid: int, alive: list[Process]) -> Iterator[Finding]:
    """TCP sockets with keys, which would come back without and take any packet."""
    inodes = tree_inodes(process.pid for process in alive)
    by_pid = {process.pid: process for process in alive}
    with Diag(init_pid) as diag:
        found = diag.sockets(inodes, with_keys=True)
    for one in found:
        if one.has_keys:
            process = by_pid[inodes[one.inode][0]]
            yield finding(
                Reason.HANDLE_UNSUPPORTED,
                pid=process.ns_pid,
                name=process.name,
                kind="a TCP socket with keys (TCP_MD5SIG)",
            )


def _unix_outside(snapshot: Snapshot, alive: list[Process]) -> Iterator[Finding]:
    """Connections whose other end is no program of the session's.

    A program that has begun since the tree was looked at is not in it: who seems to be
    outside is looked for once more.
    """
    init = snapshot.init
    found = list(_unix_findings(init.pid, alive))
    if any(peer for (_, peer), _ in found):
        with contextlib.suppress(NotFound):
            alive = [*alive, *processes.snapshot(init.pid, init.start_time).processes]
        again = {ends for ends, _ in _unix_findings(init.pid, alive)}
        found = [(ends, one) for ends, one in found if not ends[1] or ends in again]
    yield from (one for _, one in found)


def _unix_findings(
    init_pid: int, alive: list[Process]
) -> Iterator[tuple[tuple[int, int], Finding]]:
    """Findings, with a connection's ends; for what waits at a listener, it and 0."""
    inodes = tree_inodes(process.pid for process in alive)
    known = {one.inode: one for one in unix_sockets(init_pid)}
    #: Connection not accepted yet → its listener.
    asked = {client: one for one in known.values() for client in one.waiting}
    by_pid = {process.pid: process for process in alive}
    for inode, (pid, _) in sorted(inodes.items()):
        one = known.get(inode)
        if one is not None and one.waiting:
            clients = [inodes[n] for n in one.waiting if n in inodes]
            for where in refusals.waiting_at(one, clients):
                unread = _at(by_pid[pid], where)
                yield (inode, 0), finding(Reason.SOCKET_UNREAD, **unread)
        peer = (known.get(one.peer) or asked.get(inode)) if one else None
        if one is None or not _leads_out(one, peer, inodes):
            continue
        where = (peer.name if peer else "") or one.name or "another program"
        ends = inode, one.peer or inode
        yield ends, finding(Reason.UNIX_OUTSIDE, **_at(by_pid[pid], where))


def _at(who: Process, where: str) -> dict[str, Any]:
    return {"pid": who.ns_pid, "name": who.name, "where": where}


def _leads_out(
    one: UnixSocket, peer: UnixSocket | None, inodes: Collection[int]
) -> bool:
    """Whether its other end is outside, such that CRIU cannot save it.

    A peer that is not known is in a network namespace of its own. A datagram socket
    needs no peer that knows of it, only a name to send to.
    """
    if peer is not None and peer.inode in inodes:
        return False
    if one.kind == socket.SOCK_DGRAM:
        return one.peer != 0 and (peer is None or not peer.name)
    return one.is_connected

"""A session's processes, from /proc: list, continue, end.

A process is identified by its pid and its start time together, so that a pid given to
another process is never touched. Nothing here starts a process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.libc import libc
from jupyterhub_gpu_reclaim.linux.procfs import PARENT, START_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: States of /proc/PID/stat. (``t``, held by a debugger, is not stopped for good.)
STOPPED = "T"
DEAD = frozenset("ZXx")
#: <linux/nsfs.h>
_NS_GET_PARENT = 0xB702
#: A line of /proc/<pid>/status.
_NAMESPACE_INIT = re.compile(rb"^NSpid:(?:\t\d+)+\t1$", re.MULTILINE)


@dataclass(frozen=True)
class Process:
    """One process at one moment."""

    pid: int  #: in our own pid namespace
    ns_pid: int  #: in the session's
    ppid: int  #: in our own
    name: str
    state: str  #: one letter, as in proc(5)
    start_time: int  #: clock ticks since boot; with the pid it names the process
    uid: int

    @property
    def stopped(self) -> bool:
        return self.state == STOPPED

    @property
    def facts(self) -> dict[str, Any]:
        """How the sentence of a reason names it."""
        return {"pid": self.ns_pid, "name": self.name}


@dataclass(frozen=True)
class Snapshot:
    """A session's init and everything below it, parents before children."""

    init: Process
    processes: tuple[Process, ...]

    @cached_property
    def root(self) -> Process | None:
        """The process that leads the tree, the init's child; None while there is none.

        Orphans stay below the root, which is a "child subreaper"; the oldest child of
        the init is the root.
        """
        children = [p for p in self.processes if p.ppid == self.init.pid]
        return min(children, key=lambda p: p.ns_pid, default=None)

    @cached_property
    def server(self) -> Process | None:
        if self.root is None:
            return None
        children = [p for p in self.processes if p.ppid == self.root.pid]
        return min(children, key=lambda p: p.ns_pid, default=None)

    @cached_property
    def alive(self) -> list[Process]:
        return [one for one in self.processes if one.state not in DEAD]

    @cached_property
    def stopped(self) -> frozenset[int]:
        return frozenset(p.ns_pid for p in self.processes if p.stopped)


def start_time(pid: int, *, whole: bool = False) -> int | None:
    """When that process started (clock ticks since boot); None when it is gone.

    ``whole``: its main thread may have ended, before the others or with them.
    """
    stat = procfs.stat(pid)
    there = bool(stat) and (whole or stat[0] not in DEAD)
    return int(stat[START_TIME]) if there else None


def is_stopped(process: Process) -> bool:
    stat = procfs.stat(process.pid)
    return stat[:1] == [STOPPED] and int(stat[START_TIME]) == process.start_time


def times_run(process: Process) -> list[int]:
    """How long each thread of it has been on a processor, in ns (proc(5), schedstat).

    Empty if it has ended, or the kernel does not count.
    """
    tasks = sorted((procfs.PROC / str(process.pid) / "task").glob("*"))
    told = [procfs.text(process.pid, f"task/{task.name}/schedstat") for task in tasks]
    times = [int(text.partition(" ")[0] or 0) for text in told]
    return times if any(times) else []


def times_stopped(process: Process) -> list[int]:
    """The same of a process that has just stopped, once it is off its processors.

    It counts as stopped a moment before.
    """
    for tid in (procfs.PROC / str(process.pid) / "task").glob("*"):
        # The kernel answers when the thread is at rest (collect_syscall).
        procfs.text(process.pid, f"task/{tid.name}/syscall")
    return times_run(process)


def _process(pid: int, depth: int) -> Process | None:
    """One process, whose own pid is the ``depth``-th of its NSpid line."""
    stat, status = procfs.stat(pid), procfs.status(pid)
    if not stat or not status or stat[0] in "Xx":
        return None
    pids = [int(number) for number in status["NSpid"].split()]
    return Process(
        pid=pid,
        ns_pid=pids[depth] if depth < len(pids) else 0,
        ppid=int(stat[PARENT]),
        name=status["Name"],
        state=stat[0],
        start_time=int(stat[START_TIME]),
        uid=int(status["Uid"].split()[0]),
    )


def _depth(pid: int) -> int:
    """How many pid namespaces below ours that process lives; 0 when it is gone."""
    return max(0, len(procfs.status(pid).get("NSpid", "").split()) - 1)


def is_namespace_init(status: bytes) -> bool:
    # Of a namespace below ours.
    return _NAMESPACE_INIT.search(status) is not None


def families() -> dict[int, list[int]]:
    """The pids of every process of the machine, by their parent's."""
    children: dict[int, list[int]] = {}
    for pid in procfs.pids():
        if stat := procfs.stat(pid):
            children.setdefault(int(stat[PARENT]), []).append(pid)
    return children


def snapshot_init(init_pid: int, start: int | None = None) -> Process:
    """The session's init alone, now.

    Raises:
        NotFound: there is no such init.
    """
    init = _process(init_pid, -1)
    if init is None or init.state in DEAD or start not in (None, init.start_time):
        raise NotFound(Reason.UNKNOWN_SESSION, session=f"under process {init_pid}")
    return init


def inhabitants(init: Process) -> list[Process]:
    """Every process of the init's pid namespace and of those below it, the init first.

    Also those that were started from outside (``docker exec``, ``nsenter``), and those
    of another container that shares the namespace.
    """
    return look(init)[1]


def look(init: Process) -> tuple[Snapshot, list[Process]]:
    """The session under that init, and the inhabitants, both of the same moment."""
    depth = _depth(init.pid)
    children: dict[int, list[Process]] = {}
    inside = []
    for pid, is_inside in _near(init.pid):
        process = _process(pid, depth)
        if process is not None:
            children.setdefault(process.ppid, []).append(process)
            if is_inside and process.ns_pid:
                inside.append(process)
    inside.sort(key=lambda process: (process.pid != init.pid, process.ns_pid))
    tree = children.get(init.pid, [])
    for process in tree:
        tree += children.get(process.pid, ())
    return Snapshot(init, tuple(tree)), inside


def _near(init_pid: int) -> Iterator[tuple[int, bool]]:
    """The pids of the inhabitants, and of those (False) that we may not look at.

    A machine may have tens of thousands of others, each of which costs one call here.
    """
    inside = procfs.link(init_pid, "ns/pid")
    known: dict[str, bool] = {}
    with contextlib.ExitStack() as stack:
        for pid in procfs.pids():
            its = procfs.link(pid, "ns/pid") if inside else ""
            if its and its not in known:
                above = _namespaces_of(pid, stack)
                its = above[0] if above else ""
                known.setdefault(its, inside in above)
            if not its or known[its]:
                yield pid, bool(its)


def _namespaces_of(pid: int, stack: contextlib.ExitStack) -> list[str]:
    """The pid namespace of a process and those above it, up to our own.

    They are held open, so that no new one gets the number of one of them.
    """
    found = []
    try:
        current = os.open(procfs.PROC / str(pid) / "ns/pid", os.O_RDONLY)
        stack.callback(os.close, current)
        while True:
            found.append(f"pid:[{os.fstat(current).st_ino}]")
            current = stack.enter_context(closing(fcntl.ioctl(current, _NS_GET_PARENT)))
    except OSError:  # EPERM: the one above is not ours to see
        return found


def wake_parents(inside: Sequence[Process]) -> None:
    """Continue outside processes that stopped because their child inside was stopped.

    nsenter(1) does so, as a shell would. Stopped, it collects no child that has ended,
    and the kernel keeps a pid namespace until every process in it is collected.
    """
    mine = {process.pid for process in inside}
    for pid in {process.ppid for process in inside} - mine - {0}:
        parent = _process(pid, -1)
        if parent is not None and parent.stopped:
            send(parent, signal.SIGCONT)


def has_children(init_pid: int) -> bool:
    """Whether that process has children; quick if it has. False when it is gone."""
    for path in (procfs.PROC / str(init_pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):
            if path.read_bytes():
                return True
    # The kernel's list may miss one while another ends (proc(5)).
    return bool(families().get(init_pid))


def snapshot(
    init_pid: int,
    start: int | None = None,
    children: Mapping[int, Sequence[int]] | None = None,
) -> Snapshot:
    """The session under that init, now; its start time is against a pid used again.

    ``children`` is a recent result of ``families``, when many sessions are looked up.

    Raises:
        NotFound: there is no such init.
    """
    init = snapshot_init(init_pid, start)
    if children is None:
        return look(init)[0]
    pids = list(children.get(init_pid, ()))
    for pid in pids:
        pids += children.get(pid, ())
    depth = _depth(init_pid)
    found = (_process(pid, depth) for pid in pids)
    return Snapshot(init, tuple(one for one in found if one is not None))


@contextlib.contextmanager
def held(process: Process, *, whole: bool = False) -> Iterator[int | None]:
    """A pidfd of exactly that process; None when it has ended, as `start_time` says."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    with closing(pidfd):
        # Read after the pidfd was opened: from then on the pid cannot be reused.
        same = start_time(process.pid, whole=whole) == process.start_time
        yield pidfd if same else None


@contextlib.contextmanager
def named(process: Process, what: str) -> Iterator[None]:
    """A refusal of the kernel for that process ends a capture with its name.

    Raises:
        ReclaimError: ``capture_failed``: the process, and ``what``.
    """
    try:
        yield
    except OSError as error:
        why = f"process {process.ns_pid} ({process.name}) {what}"
        raise ReclaimError(Reason.CAPTURE_FAILED, why=why, detail=str(error)) from error


def send(process: Process, number: int) -> bool:
    """Signal exactly that process; False when it has ended."""
    with held(process) as pidfd:
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return False
        return True


def stop(process: Process, seconds: float) -> None:
    """Stop exactly that process, and wait until it is, or has ended, or time is up."""
    deadline = time.monotonic() + seconds
    if send(process, signal.SIGSTOP):
        while not is_stopped(process) and time.monotonic() < deadline:
            time.sleep(0.0005)  # no event reports the stop of another's child


def pending_signals(pid: int) -> int:
    """The signals that wait for a process or its first thread, as bits; 0 when gone."""
    status = procfs.status(pid)
    return int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16)


def send_to_threads(
    process: Process, tids: Iterable[int], number: signal.Signals
) -> None:
    """Signal single threads of a process; those that have ended get nothing."""
    with held(process) as pidfd:
        if pidfd is not None:
            for tid in tids:
                libc.tgkill(process.pid, tid, int(number))


def wait_stopped(init_pid: int, start: int, *, timeout: float) -> Snapshot:
    """The tree once all of it is stopped: CRIU has sent SIGSTOP and has ended.

    Raises:
        NotFound: the init has ended.
        ReclaimError: a process still ran when the time (seconds) was up.
    """
    deadline = time.monotonic() + timeout
    while True:
        tree = snapshot(init_pid, start)
        running = [one for one in tree.alive if not one.stopped]
        if not running:
            return tree
        if time.monotonic() > deadline:
            names = ", ".join(f"{p.ns_pid} ({p.name})" for p in running[:3])
            raise ReclaimError(
                Reason.TIMED_OUT, step="stop", seconds=timeout, detail=names
            )
        # No event reports the stop of another's child; it takes microseconds.
        time.sleep(0.002)


def wait_gone(processes: Iterable[Process], deadline: float) -> list[Process]:
    """Wait until they have ended; return those that have not when the time is up."""
    late = []
    for process in processes:
        # Of a killed process the main thread is gone while others still write; of an
        # init the last one ends the namespace.
        with held(process, whole=True) as pidfd:
            if pidfd is None:
                continue
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                late.append(process)
    return late


def kill_tree(init_pid: int, start: int | None = None, *, timeout: float) -> None:
    """End everything below the init, but not the init: after a failed restore.

    Anything stopped beside the tree goes on, the init first.

    Raises:
        NotFound: there is no such init.
        ReclaimError: a process was still there when the time (seconds) was up.
    """
    deadline = time.monotonic() + timeout
    while True:
        tree = snapshot(init_pid, start)
        alive = tree.alive
        if not alive:
            others = inhabitants(tree.init)
            for one in others:
                if one.stopped:
                    send(one, signal.SIGCONT)
            wake_parents([one for one in others if one.pid != init_pid])
            return
        for process in alive:
            send(process, signal.SIGKILL)
        _refuse_late(wait_gone(alive, deadline))


def kill_session(init_pid: int, start: int, *, timeout: float) -> None:
    """End the init, and so, by the kernel, all of its pid namespace. Idempotent.

    An init that has an image's entry point above it (tini) is not the first process of
    its namespace: that one is ended, and the container with it.

    Raises:
        ReclaimError: it was still there when the time (seconds) was up.
    """
    try:
        first = _first_of(snapshot_init(init_pid, start))
    except NotFound:
        return
    inside = [one for one in inhabitants(first) if one.pid != first.pid]
    send(first, signal.SIGKILL)
    wake_parents(inside)
    # The first one ends last, when the kernel has reaped all others.
    _refuse_late(wait_gone([first], time.monotonic() + timeout))


def _first_of(init: Process) -> Process:
    depth = _depth(init.pid)
    first = init
    while first.ns_pid != 1 and depth:
        above = _process(first.ppid, depth)
        if above is None or above.ns_pid == 0:
            break  # not of that namespace: this one was entered from outside
        first = above
    return first


def _refuse_late(late: list[Process]) -> None:
    if late:
        names = ", ".join(f"{p.pid} ({p.name})" for p in late[:3])
        raise ReclaimError(Reason.RELEASE_FAILED, why=f"still running: {names}")

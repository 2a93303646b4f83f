"""Terminals that programs hold, and what they have stopped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, procfs, ptrace
from jupyterhub_gpu_reclaim.linux.epoll import EVENT
from jupyterhub_gpu_reclaim.linux.libc import AT_FDCWD
from jupyterhub_gpu_reclaim.linux.processes import DEAD, named

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Return
    from jupyterhub_gpu_reclaim.linux.processes import Process
    from jupyterhub_gpu_reclaim.linux.ptrace import Traced

#: Number of the device, of Documentation/admin-guide/devices.txt.
DEV_TTY: Final = os.makedev(5, 0)
#: Major numbers of pseudo-terminals.
PTYS: Final = range(136, 144)
_TIOCGSID: Final = 0x5429  # <asm-generic/ioctls.h>
_EPOLL: Final = "anon_inode:[eventpoll]"
_EPOLL_CTL_ADD, _EPOLL_CTL_DEL = 1, 2  # <sys/epoll.h>


class _Watch(NamedTuple):
    """A line of an epoll instance in ``fdinfo`` (proc_pid_fdinfo(5))."""

    epoll: int  #: its descriptor
    fd: int  #: that is watched
    events: int
    data: int


class Terminals(Kind):
    """Terminals held as ``/dev/tty``, and programs that one has stopped."""

    def before_dump(self, dump: Dump) -> None:
        for process in dump.tree.processes:
            if process.state not in DEAD and procfs.has_terminal(process.pid):
                _stop_plainly(process)
        for process in dump.tree.processes:
            terminal = procfs.terminal(process.pid)
            held = list(_held(process.pid)) if terminal else []
            if held:
                _open_by_name(process, held, f"/dev/pts/{os.minor(terminal)}")

    def rewrite(self, back: Return) -> None:
        # Between two commands of a shell the group in its terminal's foreground may
        # have ended. CRIU cannot make such a group, so the shell's own has the
        # foreground after a return, which is what the shell does next.
        groups = {task.pgid for task in back.images.tasks()}
        terminals = back.images.entries(
            "tty-info.img", images.TTY_INFO_MAGIC, "tty_info_entry"
        )
        for one in terminals:
            if one.pgrp and one.pgrp not in groups:
                one.pgrp = one.sid


def can_be_named(pid: int) -> bool:
    """Whether a process's open ``/dev/tty`` can be opened by its own name instead."""
    return os.major(procfs.terminal(pid)) in PTYS


def _stop_plainly(process: Process) -> None:
    # A program in the background that reads from its terminal, or writes to it (stty
    # tostop), is stopped by it. CRIU knows of stops by SIGSTOP and SIGTSTP alone
    # ("unsupported stop signal"), so it is stopped by SIGSTOP instead.
    stands = named(process, "does not stand still")
    with stands, processes.held(process) as pidfd:
        if pidfd is not None:
            ptrace.stop_plainly(process.pid, pidfd)


def _held(pid: int) -> Iterator[int]:
    for one in procfs.descriptors(pid):
        if one.target.startswith("/"):
            status = procfs.target_status(pid, f"fd/{one.fd}")
            if status is not None and status.st_rdev == DEV_TTY:
                yield one.fd


def _open_by_name(process: Process, held: Collection[int], name: str) -> None:
    # /dev/tty is the controlling terminal of the program that opens it (tty(4)), and
    # what is open then is that terminal. dash holds it. CRIU takes the first program
    # that has either end open for its owner, which is the server, and refuses ("ctty
    # inheritance detected", CRIU 4.2, tty_verify_ctty). So each such descriptor becomes
    # one of /dev/pts/N, opened by its own program with the same flags.
    try:
        with ptrace.stopped(process.pid) as traced:
            watches = list(_watches(process.pid))
            for fd in held:
                _replace(traced, fd, name, [one for one in watches if one.fd == fd])
    except OSError as error:
        raise ReclaimError(
            Reason.DEVICE_OPEN,
            pid=process.ns_pid,
            name=process.name,
            device="/dev/tty",
            detail=str(error),
        ) from error


def _replace(traced: Traced, fd: int, name: str, watches: Collection[_Watch]) -> None:
    if len(watches) > 1:
        # It may be one instance that has two descriptors: told twice, it would fail.
        raise OSError(0, f"descriptor {fd} is watched more than once")
    flags = int(procfs.fdinfo(traced.pid, fd)["flags"], 8)
    with traced.text(name) as path:
        new = traced.call("openat", AT_FDCWD, path, flags | os.O_NOCTTY, 0)
        try:
            for one in (fd, new):
                # Answered for its own terminal only. Another devpts has that name, too.
                traced.call("ioctl", one, _TIOCGSID, path)
            for watch in watches:
                traced.call("epoll_ctl", watch.epoll, _EPOLL_CTL_DEL, fd, 0)
            traced.call("dup3", new, fd, flags & os.O_CLOEXEC)
        finally:
            traced.call("close", new)
    # An epoll(7) instance watches what is open, not its number.
    for watch in watches:
        with traced.text(EVENT.pack(watch.events, watch.data)) as event:
            traced.call("epoll_ctl", watch.epoll, _EPOLL_CTL_ADD, fd, event)


def _watches(pid: int) -> Iterator[_Watch]:
    for one in procfs.descriptors(pid):
        if one.target != _EPOLL:
            continue
        for line in procfs.text(pid, f"fdinfo/{one.fd}").splitlines():
            if line.startswith("tfd:"):
                _, fd, _, events, _, data, *_ = line.split()
                yield _Watch(one.fd, int(fd), int(events, 16), int(data, 16))

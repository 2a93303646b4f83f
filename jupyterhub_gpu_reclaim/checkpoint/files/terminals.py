"""Has programs open their terminal by its own name that hold it as ``/dev/tty``.

``/dev/tty`` is the controlling terminal of whoever opens it (tty(4)), and what is open
then is that terminal. dash holds it, and so does whatever asks beside its input. CRIU
takes the first program that has either end of the terminal open for its owner, which is
the server, and refuses ("ctty inheritance detected", CRIU 4.2, ``tty_verify_ctty``). So
in a tree that stands each such descriptor becomes one of ``/dev/pts/N``, opened by its
own program with the same flags: the same terminal, and it stays so.

An epoll(7) instance watches what is open, not its number, so it is told anew.

A program in the background that reads from its terminal, or writes to it (``stty
tostop``), is stopped by it. CRIU knows of stops by SIGSTOP and SIGTSTP alone
("unsupported stop signal"), so it is stopped by SIGSTOP instead; who continues it finds
it where it was.

Between two commands of a shell the group in its terminal's foreground may have ended.
CRIU cannot make such a group, so the shell's own has the foreground after a return,
which is what the shell does next.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, procfs, ptrace
from jupyterhub_gpu_reclaim.linux.epoll import EVENT
from jupyterhub_gpu_reclaim.linux.libc import AT_FDCWD
from jupyterhub_gpu_reclaim.linux.processes import DEAD, named

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from jupyterhub_gpu_reclaim.linux.ptrace import Traced

#: Number of the device, of Documentation/admin-guide/devices.txt.
DEV_TTY: Final = os.makedev(5, 0)
#: Major numbers of pseudo-terminals.
PTYS: Final = range(136, 144)
_INFO: Final = "tty-info.img"
#: Seconds in which the threads of one process must stand still.
_SECONDS: Final = 10.0
_TIOCGSID: Final = 0x5429  # <asm-generic/ioctls.h>
_EPOLL: Final = "anon_inode:[eventpoll]"
_EPOLL_CTL_ADD, _EPOLL_CTL_DEL = 1, 2  # <sys/epoll.h>


class _Watch(NamedTuple):
    """A line of an epoll instance in ``fdinfo`` (proc_pid_fdinfo(5))."""

    epoll: int  #: its descriptor
    fd: int  #: that is watched
    events: int
    data: int


def can_be_named(pid: int) -> bool:
    """Whether a process's open ``/dev/tty`` can be opened by its own name instead."""
    return os.major(procfs.terminal(pid)) in PTYS


def open_by_name(tree: Snapshot) -> None:
    """Do so in a tree that stands, which then has no ``/dev/tty`` open; idempotent.

    Raises:
        ReclaimError: one could not be (``device_open``).
    """
    for process in tree.processes:
        terminal = procfs.terminal(process.pid)
        held = list(_held(process.pid)) if terminal else []
        if held:
            _open_by_name(process, held, f"/dev/pts/{os.minor(terminal)}")


def stop_plainly(tree: Snapshot) -> None:
    """Have what its terminal has stopped be stopped by SIGSTOP, in a tree that stands.

    Raises:
        ReclaimError: one does not stand still (``capture_failed``).
    """
    for process in tree.processes:
        if process.state in DEAD or not procfs.has_terminal(process.pid):
            continue
        stands = named(process, "does not stand still")
        with stands, processes.held(process) as pidfd:
            if pidfd is not None:
                ptrace.stop_plainly(process.pid, pidfd, seconds=_SECONDS)


def with_foregrounds(read: Callable[[str], bytes | None]) -> dict[str, bytes]:
    """The image of terminals, if the group in the foreground of one has ended.

    Raises:
        RestoreFailed: an image is damaged.
    """
    tree = images.split(read("pstree.img") or b"", images.PSTREE_MAGIC)
    groups = {images.parse("pstree_entry", one).pgid for one in tree}
    if (image := read(_INFO)) is None:
        return {}
    found: list[Any] = [
        images.parse("tty_info_entry", one)
        for one in images.split(image, images.TTY_INFO_MAGIC)
    ]
    ended = [one for one in found if one.pgrp and one.pgrp not in groups]
    for one in ended:
        one.pgrp = one.sid
    data = images.join(images.TTY_INFO_MAGIC, map(images.serialize, found))
    return {_INFO: data} if ended else {}


def _held(pid: int) -> Iterator[int]:
    """Descriptors of the process that are ``/dev/tty``."""
    for one in procfs.descriptors(pid):
        if one.target.startswith("/"):
            status = procfs.target_status(pid, f"fd/{one.fd}")
            if status is not None and status.st_rdev == DEV_TTY:
                yield one.fd


def _open_by_name(process: Process, held: Collection[int], name: str) -> None:
    try:
        with ptrace.stopped(process.pid, seconds=_SECONDS) as traced:
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
    for watch in watches:
        with traced.text(EVENT.pack(watch.events, watch.data)) as event:
            traced.call("epoll_ctl", watch.epoll, _EPOLL_CTL_ADD, fd, event)


def _watches(pid: int) -> Iterator[_Watch]:
    """What the process's epoll instances watch."""
    for one in procfs.descriptors(pid):
        if one.target != _EPOLL:
            continue
        for line in procfs.text(pid, f"fdinfo/{one.fd}").splitlines():
            if line.startswith("tfd:"):
                _, fd, _, events, _, data, *_ = line.split()
                yield _Watch(one.fd, int(fd), int(events, 16), int(data, 16))

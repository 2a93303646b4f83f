"""Has programs open their terminal by its own name that hold it as ``/dev/tty``.

``/dev/tty`` is the controlling terminal of whoever opens it (tty(4)), and what is open
then is that terminal. dash holds it, and so does whatever asks beside its input. CRIU
takes the first program that has either end of the terminal open for its owner, which is
the server, and refuses ("ctty inheritance detected", CRIU 4.2, ``tty_verify_ctty``). So
in a tree that stands each such descriptor becomes one of ``/dev/pts/N``, opened by its
own program with the same flags: the same terminal, and it stays so.

An epoll(7) instance watches what is open, not its number, and would lose it: a program
that watches its terminal so is refused.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs, ptrace

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from jupyterhub_gpu_reclaim.linux.ptrace import Traced

#: Number of the device, of Documentation/admin-guide/devices.txt.
DEV_TTY: Final = os.makedev(5, 0)
#: Major numbers of pseudo-terminals.
PTYS: Final = range(136, 144)
#: Seconds in which the threads of one process must stand still.
_SECONDS: Final = 10.0
_AT_FDCWD: Final = -100
_TIOCGSID: Final = 0x5429  # <asm-generic/ioctls.h>
_EPOLL: Final = "anon_inode:[eventpoll]"


def can_be_named(pid: int, fd: int) -> bool:
    """Whether an open ``/dev/tty`` can be opened by its own name instead."""
    return os.major(procfs.terminal(pid)) in PTYS and fd not in _watched(pid)


def open_by_name(tree: Snapshot) -> None:
    """Do so in a tree that stands, which then has no ``/dev/tty`` open; idempotent.

    Raises:
        ReclaimError: one could not be (``device_open``).
    """
    for process in tree.processes:
        if not procfs.terminal(process.pid):
            continue
        held = [
            one.fd
            for one in procfs.descriptors(process.pid)
            if _is_dev_tty(process.pid, one.fd)
        ]
        if held:
            _open_by_name(process, held)


def _is_dev_tty(pid: int, fd: int) -> bool:
    status = procfs.target_status(pid, f"fd/{fd}")
    return status is not None and status.st_rdev == DEV_TTY


def _open_by_name(process: Process, held: list[int]) -> None:
    pid = process.pid
    try:
        with ptrace.stopped(pid, seconds=_SECONDS) as traced:
            for fd in held:
                _replace(traced, fd)
    except OSError as error:
        raise ReclaimError(
            Reason.DEVICE_OPEN,
            pid=process.ns_pid,
            name=process.name,
            device="/dev/tty",
            detail=str(error),
        ) from error


def _replace(traced: Traced, fd: int) -> None:
    if not can_be_named(traced.pid, fd):
        raise OSError(0, f"descriptor {fd} is watched, or of another terminal")
    name = f"/dev/pts/{os.minor(procfs.terminal(traced.pid))}"
    flags = int(procfs.fdinfo(traced.pid, fd)["flags"], 8)
    with traced.text(name) as path:
        new = traced.call("openat", _AT_FDCWD, path, flags | os.O_NOCTTY, 0)
        try:
            for one in (fd, new):
                # Answered for its own terminal only. Another devpts has that name, too.
                traced.call("ioctl", one, _TIOCGSID, path)
            traced.call("dup3", new, fd, flags & os.O_CLOEXEC)
        finally:
            traced.call("close", new)


def _watched(pid: int) -> set[int]:
    """Descriptors that the process's epoll instances watch."""
    return {
        int(line.split()[1])
        for one in procfs.descriptors(pid)
        if one.target == _EPOLL
        for line in procfs.text(pid, f"fdinfo/{one.fd}").splitlines()
        if line.startswith("tfd:")
    }

"""Terminals that programs hold, and what they have stopped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, procfs, ptrace
from jupyterhub_gpu_reclaim.linux.libc import AT_FDCWD
from jupyterhub_gpu_reclaim.linux.processes import named

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Program, Return
    from jupyterhub_gpu_reclaim.linux.processes import Process
    from jupyterhub_gpu_reclaim.linux.ptrace import Traced

#: Number of the device, of Documentation/admin-guide/devices.txt.
DEV_TTY: Final = os.makedev(5, 0)
#: Major numbers of pseudo-terminals.
PTYS: Final = range(136, 144)
_TIOCGSID: Final = 0x5429  # <asm-generic/ioctls.h>
_EPOLL: Final = "anon_inode:[eventpoll]"


class Terminals(Kind):
    """Terminals held as ``/dev/tty``, and programs that one has stopped."""

    def before_dump(self, dump: Dump) -> None:
        for process in dump.tree.alive:
            if procfs.terminal(process.pid):
                _stop_plainly(process)
        for one in dump.programs:
            terminal = procfs.terminal(one.pid)
            held = list(_held(one)) if terminal else []
            if held:
                _open_by_name(one, held, f"/dev/pts/{os.minor(terminal)}")

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


def can_be_named(one: Program, fd: int) -> bool:
    """Whether a process's open ``/dev/tty`` can be opened by its own name instead.

    Not one that an epoll(7) instance watches, which keeps to what was open.
    """
    return os.major(procfs.terminal(one.pid)) in PTYS and fd not in _watched(one)


def _stop_plainly(process: Process) -> None:
    # A program in the background that reads from its terminal, or writes to it (stty
    # tostop), is stopped by it. CRIU knows of stops by SIGSTOP and SIGTSTP alone
    # ("unsupported stop signal"), so it is stopped by SIGSTOP instead.
    stands = named(process, "does not stand still")
    with stands, processes.held(process) as pidfd:
        if pidfd is not None:
            ptrace.stop_plainly(process.pid, pidfd)


def _held(one: Program) -> Iterator[int]:
    for each in one.descriptors:
        if each.target.startswith("/"):
            status = one.target(f"fd/{each.fd}")
            if status is not None and status.st_rdev == DEV_TTY:
                yield each.fd


def _open_by_name(one: Program, held: Collection[int], name: str) -> None:
    # /dev/tty is the controlling terminal of the program that opens it (tty(4)), and
    # what is open then is that terminal. dash holds it. CRIU takes the first program
    # that has either end open for its owner, which is the server, and refuses ("ctty
    # inheritance detected", CRIU 4.2, tty_verify_ctty). So each such descriptor becomes
    # one of /dev/pts/N, opened by its own program with the same flags.
    try:
        with ptrace.stopped(one.pid) as traced:
            for fd in held:
                _replace(traced, one, fd, name)
    except OSError as error:
        facts = {**one.process.facts, "device": "/dev/tty"}
        raise ReclaimError(Reason.DEVICE_OPEN, detail=str(error), **facts) from error


def _replace(traced: Traced, one: Program, fd: int, name: str) -> None:
    if fd in _watched(one):
        raise OSError(0, f"descriptor {fd} is watched")
    flags = one.flags(fd)
    with traced.text(name) as path:
        new = traced.call("openat", AT_FDCWD, path, flags | os.O_NOCTTY, 0)
        try:
            for each in (fd, new):
                # Answered for its own terminal only. Another devpts has that name, too.
                traced.call("ioctl", each, _TIOCGSID, path)
            traced.call("dup3", new, fd, flags & os.O_CLOEXEC)
        finally:
            traced.call("close", new)


def _watched(one: Program) -> set[int]:
    instances = (one.info(d.fd) for d in one.descriptors if d.target == _EPOLL)
    lines = (line for told in instances for line in told.splitlines())
    return {int(line.split()[1]) for line in lines if line.startswith("tfd:")}

"""Enters a session's namespaces to execute a program there, or to make a place.

Started by :mod:`~jupyterhub_gpu_reclaim.checkpoint.criu.namespaces` as ``python3 -I -S
nsenter.py`` with one object (marshal) on its input: the agent has threads, and a thread
cannot change its mount namespace alone. A session waits for it: ``json``, ``typing``
and ``signal`` would take longer to import than all that it does. It writes what happens
as lines of Python's own notation to ``report``.

**A program** (:func:`run`). It joins every namespace before it forks into the pid
namespace, so no process that the session can see has our own root, working folder,
descriptors or keys. It stays outside of the pid namespace, and outlives an agent that
is killed. It never ends the program: a CRIU that is killed in the middle leaves the
session's processes damaged.

**A place** (:func:`make_place`) has a pid, mount, network, IPC and UTS namespace of its
own, and ends with the agent. Its files are those of the session that it is for; what
only one session can have (/proc, terminals) is made anew, and of the network there is a
loopback. Its pid 1 is this program, which is not executed again after it has entered
the session's files, so that nothing of them is run or read.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import marshal
import os
import select
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
#: All of a session's namespaces; only children enter the last one.
ALL = (
    CLONE_NEWIPC
    | CLONE_NEWUTS
    | CLONE_NEWNET
    | CLONE_NEWCGROUP
    | CLONE_NEWNS
    | CLONE_NEWPID
)
COUNTER = "sys/kernel/ns_last_pid"  #: below /proc
PR_SET_DUMPABLE = 4
# The same numbers on every architecture (<asm-generic/unistd.h>, <linux/mount.h>).
FSOPEN, FSCONFIG, FSMOUNT, CLOSE_RANGE = 430, 431, 432, 436
FSCONFIG_CMD_CREATE = 6
CLOEXEC = 1  #: FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC
CLOSE_RANGE_CLOEXEC = 4
LAST_DESCRIPTOR = 0xFFFFFFFF
KEYCTL = 250  #: of x86-64; <linux/keyctl.h>
KEYCTL_JOIN_SESSION_KEYRING = 1
SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGTERM, SIGCHLD = 1, 2, 9, 13, 15, 17
SIG_DFL, SIG_IGN, SIG_BLOCK = 0, 1, 0
# <linux/mount.h>, <linux/prctl.h>, <linux/sockios.h>
NOSUID, NODEV, NOEXEC, BIND, REC, PRIVATE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 1 << 18
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
AF_INET, SOCK_DGRAM = 2, 2
#: Descriptors of the pipe for the session's output, as a restore expects them
#: (``kinds.output``).
OUTPUT_WRITE, OUTPUT_READ = 3, 4

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, name: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    return result


def on_signal(number: int, action: int) -> None:
    libc.signal(number, ctypes.c_void_p(action))


def setns(pidfd: int, kinds: int) -> None:
    checked(libc.setns(pidfd, kinds), "setns")


def leave_keyring() -> None:
    """Begin a session keyring: whoever has the agent's could read all keys there.

    CRIU saves no keys, and what it makes has its own keyring. Where the kernel has no
    keys, or forbids them to us and so to our children, there is nothing to leave.
    """
    made = libc.syscall(KEYCTL, KEYCTL_JOIN_SESSION_KEYRING, None)
    if made < 0 and ctypes.get_errno() not in {errno.ENOSYS, errno.EPERM}:
        checked(made, "keyctl")


def write_report(report: int, **facts: Any) -> None:
    try:
        os.write(report, f"{facts!r}\n".encode("ascii", "backslashreplace"))
    except OSError:
        return


def open_counter() -> int:
    """A descriptor of ``ns_last_pid``, to be written to inside a pid namespace.

    The counter belongs to the writer's pid namespace at the moment of the write,
    whichever /proc it is reached through. Our own one may be read-only in a container,
    and a way to it is no business of the session's: so one that is attached nowhere.
    """
    proc = open_proc()
    try:
        return os.open(COUNTER, os.O_WRONLY, dir_fd=proc)
    finally:
        os.close(proc)


def open_proc() -> int:
    """A fresh, writable /proc of our own pid namespace (fsopen(2), Linux 5.2)."""
    context = checked(libc.syscall(FSOPEN, b"proc", CLOEXEC), "/proc")
    try:
        made = libc.syscall(FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0)
        checked(made, "/proc")
        return checked(libc.syscall(FSMOUNT, context, CLOEXEC, 0), "/proc")
    finally:
        os.close(context)


def set_last_pid(counter: int, value: int) -> None:
    """In a child inside the pid namespace: make the next pids start after ``value``."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(counter, str(value).encode())
            code = 0
        finally:
            os._exit(code)
    _, wait_status = os.waitpid(child, 0)
    if wait_status != 0:
        raise OSError(0, "not writable", COUNTER)


def close_others(keep: list[int]) -> None:
    """Let no other descriptor reach the program (close_range(2), Linux 5.9)."""
    first = 3
    for number in [*sorted(set(keep)), LAST_DESCRIPTOR + 1]:
        if first < number:
            result = libc.syscall(
                CLOSE_RANGE,
                ctypes.c_uint(first),
                ctypes.c_uint(number - 1),
                CLOSE_RANGE_CLOEXEC,
            )
            checked(result, "close_range")
        first = max(first, number + 1)


def become(spec: dict[str, Any]) -> NoReturn:
    """In the child, inside of everything: exec; ends with 127 when that fails."""
    report = spec["report"]
    try:
        os.setsid()
        # A CRIU that dies of SIGPIPE leaves its parasites in the session.
        on_signal(SIGPIPE, SIG_IGN)
        write_report(report, inner_pid=os.getpid())
        close_others(spec["close"])
        os.execve(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606
    except OSError as error:
        write_report(report, error=f"{error.filename or 'exec'}: {error.strerror}")
    os._exit(127)


def enter(spec: dict[str, Any]) -> int:
    counter = open_counter() if spec["last_pid"] else -1
    setns(spec["pidfd"], ALL & ~CLONE_NEWIPC if spec["own_ipc"] else ALL)
    if spec["own_ipc"]:
        checked(libc.unshare(CLONE_NEWIPC), "unshare")
    # From here on every path is the session's. Nothing may be imported from there.
    os.chdir("/")
    if counter >= 0:
        set_last_pid(counter, spec["last_pid"])
        os.close(counter)
    child = os.fork()
    if child == 0:
        for number in (SIGINT, SIGTERM, SIGHUP):
            on_signal(number, SIG_DFL)
        become(spec)
    return child


def run(spec: dict[str, Any]) -> int:
    # The agent's own end must not end what is under way inside.
    for number in (SIGINT, SIGTERM, SIGHUP):
        on_signal(number, SIG_IGN)
    os.setsid()
    report = spec["report"]
    try:
        # The session must not look at this process' own program (/proc/<pid>/exe).
        checked(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")
        leave_keyring()
        # The session's user writes what is found at our own import paths there.
        sys.meta_path.clear()
        child = enter(spec)
    except OSError as error:
        write_report(report, error=f"{error.filename or 'fork'}: {error.strerror}")
        return 1
    for number in spec["close"]:
        os.close(number)
    write_report(report, pid=child)
    _, wait_status = os.waitpid(child, 0)
    write_report(report, status=os.waitstatus_to_exitcode(wait_status))
    return 0


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    checked(result, f"mount {target}")


def end_with_parent(alive: int) -> None:
    """Have the kernel kill this process when the one that made it ends."""
    checked(libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "prctl")
    if select.select([alive], [], [], 0)[0]:
        os._exit(1)


def separate(pidfd: int) -> None:
    """Enter the session's files, and leave everything else that is shared."""
    setns(pidfd, CLONE_NEWNS | CLONE_NEWUTS)
    checked(libc.unshare(ALL & ~CLONE_NEWCGROUP), "unshare")
    one = checked(libc.socket(AF_INET, SOCK_DGRAM, 0), "socket")
    fcntl.ioctl(one, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
    os.close(one)


def furnish(terminals: str) -> None:
    mount("none", "/", "", REC | PRIVATE)
    mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC)
    mount("devpts", "/dev/pts", "devpts", NOSUID | NOEXEC, terminals)
    if not os.path.islink("/dev/ptmx"):  # noqa: PTH114 - pathlib costs 5 ms to import
        mount("/dev/pts/ptmx", "/dev/ptmx", "", BIND)


def hold(spec: dict[str, Any], alive: int) -> NoReturn:
    """Run as pid 1: get ready, say so by the name, and reap until the end."""
    report = spec["report"]
    try:
        end_with_parent(alive)
        furnish(spec["terminals"])
        report = fcntl.fcntl(report, fcntl.F_DUPFD, 16)
        ends = os.pipe()
        aside = [fcntl.fcntl(end, fcntl.F_DUPFD, 16) for end in ends]
        os.dup2(aside[0], OUTPUT_READ)
        os.dup2(aside[1], OUTPUT_WRITE)
        name = ctypes.c_char_p(spec["name"].encode())
        checked(libc.prctl(PR_SET_NAME, name, 0, 0, 0), "prctl")
        ended = (ctypes.c_ulong * 16)(1 << (SIGCHLD - 1))  # sigset_t
        checked(libc.sigprocmask(SIG_BLOCK, ended, None), "sigprocmask")
        write_report(report, ready=1)
        while True:
            libc.sigwait(ended, ctypes.byref(ctypes.c_int()))
            reap()
    except OSError as error:
        write_report(report, error=f"{error.filename or 'fork'}: {error.strerror}")
    finally:
        os._exit(1)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return


def make_place(spec: dict[str, Any]) -> int:
    """Make the place; this process outlives it, and it does not outlive this one."""
    report = spec["report"]
    alive, ours = os.pipe()
    try:
        # The agent keeps our input open as long as it lives.
        end_with_parent(sys.stdin.fileno())
        separate(spec["pidfd"])
        init = os.fork()
    except OSError as error:
        write_report(report, error=f"{error.filename or 'fork'}: {error.strerror}")
        return 1
    if init == 0:
        os.close(ours)
        hold(spec, alive)
    write_report(report, pid=init)
    os.waitpid(init, 0)
    return 0


if __name__ == "__main__":
    told = marshal.load(sys.stdin.buffer)  # noqa: S302 - of the agent, our parent
    sys.exit(make_place(told) if "terminals" in told else run(told))

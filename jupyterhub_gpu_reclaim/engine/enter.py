"""Enter a session's namespaces and become a program there; a short-lived helper.

Run by :mod:`~jupyterhub_gpu_reclaim.engine.namespaces` as ``python3 -I -S enter.py``
with one JSON object on its input. A process of its own, because the agent has threads,
and a thread cannot change its mount namespace alone. Standard library only.

It stays outside of the pid namespace, writes what happens as JSON lines to ``report``,
and outlives an agent that is killed, so that the program inside can end in its own
time. It never ends the program: a CRIU that is killed in the middle leaves the
session's processes damaged.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any, NoReturn

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
COUNTER = "/proc/sys/kernel/ns_last_pid"
#: All but the pid namespace, which only children enter.
AROUND = CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWCGROUP | CLONE_NEWNS


def setns(pidfd: int, kinds: int) -> None:
    """Join those namespaces of the process behind a pidfd (setns(2), Linux 5.8)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(pidfd, kinds) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "setns")


def tell(report: int, **facts: Any) -> None:
    """One line for the agent; an agent that is gone needs none."""
    try:
        os.write(report, json.dumps(facts).encode() + b"\n")
    except OSError:
        return


def set_last_pid(value: int) -> None:
    """In a child inside the pid namespace: make the next pids start after ``value``.

    The counter belongs to the writer's pid namespace, whichever /proc it is reached
    through; so the host's will do. An agent in a container may not write to that one:
    it makes another, for nobody but the child.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                counter = os.open(COUNTER, os.O_WRONLY)
            except OSError:
                mount_proc()
                counter = os.open(COUNTER, os.O_WRONLY)
            os.write(counter, str(value).encode())
            code = 0
        finally:
            os._exit(code)
    _, wait_status = os.waitpid(child, 0)
    if wait_status != 0:
        raise OSError(0, "not writable", COUNTER)


def mount_proc() -> None:
    """A fresh, writable /proc of this process's pid namespace, seen by itself alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = (
        libc.unshare(CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
        and libc.mount(b"proc", b"/proc", b"proc", 0, None) == 0
    )
    if not done:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "/proc")


def become(spec: dict[str, Any]) -> NoReturn:
    """In the child: enter the rest and exec; ends with 127 when that fails."""
    report = spec["report"]
    try:
        setns(spec["pidfd"], AROUND)
        os.setsid()
        # A CRIU that dies of SIGPIPE leaves its parasites in the session.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        tell(report, inner_pid=os.getpid())
        os.set_inheritable(report, False)
        os.set_inheritable(spec["pidfd"], False)
        os.execve(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606
    except OSError as error:
        tell(report, error=f"{error.filename or 'exec'}: {error.strerror}")
    os._exit(127)


def main() -> int:
    """Do as the JSON on the input says; the exit code is 0 when it was done."""
    spec = json.loads(sys.stdin.buffer.readline())
    # The agent's own end must not end what is under way inside.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    report = spec["report"]
    try:
        setns(spec["pidfd"], CLONE_NEWPID)
        if spec["last_pid"]:
            set_last_pid(spec["last_pid"])
        child = os.fork()
    except OSError as error:
        tell(report, error=f"{error.filename or 'fork'}: {error.strerror}")
        return 1
    if child == 0:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        become(spec)
    for number in spec["close"]:
        os.close(number)
    tell(report, pid=child)
    _, wait_status = os.waitpid(child, 0)
    tell(report, status=os.waitstatus_to_exitcode(wait_status))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Makes an empty place and stays in it as its pid 1, until its parent ends.

Started as ``python3 -I -S place_init.py`` with one object (marshal) on its input. A
session waits for it, so it imports little (``criu.nsenter``).

The place has a pid, mount, network, IPC and UTS namespace of its own. Its files are
those of the session that it is for; what only one session can have (/proc, terminals)
is made anew, and of the network there is a loopback. It is not executed again after it
has entered the session's files, so that nothing of them is run or read.
"""

from __future__ import annotations

import ctypes
import fcntl
import marshal
import os
import select
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>, <linux/sockios.h>
NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x20000000,
    0x40000000,
)
NOSUID, NODEV, NOEXEC, BIND, REC, PRIVATE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 1 << 18
SET_PDEATHSIG, SET_NAME = 1, 15
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
AF_INET, SOCK_DGRAM, SIG_BLOCK, SIGKILL, SIGCHLD = 2, 2, 0, 9, 17
#: Descriptors of the pipe for the session's output, as a restore expects them
#: (``kinds.output``).
OUTPUT_WRITE, OUTPUT_READ = 3, 4

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, name: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)


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
    checked(libc.prctl(SET_PDEATHSIG, SIGKILL, 0, 0, 0), "prctl")
    if select.select([alive], [], [], 0)[0]:
        os._exit(1)


def separate(spec: dict[str, Any]) -> None:
    """Enter the session's files, and leave everything else that is shared."""
    checked(libc.setns(spec["pidfd"], NEWNS | NEWUTS), "setns")
    checked(libc.unshare(NEWNS | NEWUTS | NEWIPC | NEWNET | NEWPID), "unshare")
    one = libc.socket(AF_INET, SOCK_DGRAM, 0)
    checked(one, "socket")
    fcntl.ioctl(one, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
    os.close(one)


def furnish(spec: dict[str, Any]) -> None:
    mount("none", "/", "", REC | PRIVATE)
    mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC)
    mount("devpts", "/dev/pts", "devpts", NOSUID | NOEXEC, spec["terminals"])
    if not os.path.islink("/dev/ptmx"):  # noqa: PTH114 - pathlib costs 5 ms to import
        mount("/dev/pts/ptmx", "/dev/ptmx", "", BIND)


def hold(spec: dict[str, Any], alive: int) -> NoReturn:
    """Run as pid 1: get ready, say so by the name, and reap until the end."""
    try:
        end_with_parent(alive)
        furnish(spec)
        spec["report"] = fcntl.fcntl(spec["report"], fcntl.F_DUPFD, 16)
        ends = os.pipe()
        aside = [fcntl.fcntl(end, fcntl.F_DUPFD, 16) for end in ends]
        os.dup2(aside[0], OUTPUT_READ)
        os.dup2(aside[1], OUTPUT_WRITE)
        name = ctypes.c_char_p(spec["name"].encode())
        checked(libc.prctl(SET_NAME, name, 0, 0, 0), "prctl")
        ended = (ctypes.c_ulong * 16)(1 << (SIGCHLD - 1))  # sigset_t
        checked(libc.sigprocmask(SIG_BLOCK, ended, None), "sigprocmask")
        say(spec, b'{"ready": 1}')
        while True:
            libc.sigwait(ended, ctypes.byref(ctypes.c_int()))
            reap()
    except OSError as error:
        say_why(spec, error)
    finally:
        os._exit(1)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return


def say(spec: dict[str, Any], line: bytes) -> None:
    try:
        os.write(spec["report"], line + b"\n")
    except OSError:
        return


def say_why(spec: dict[str, Any], error: OSError) -> None:
    words = f"{error.filename or 'fork'}: {error.strerror}"
    say(spec, f'{{"error": "{words}"}}'.encode("ascii", "replace"))


def main() -> int:
    """Make the place; this process outlives it, and it does not outlive this one."""
    spec = marshal.load(sys.stdin.buffer)  # noqa: S302 - of the agent, our parent
    alive, ours = os.pipe()
    try:
        # The agent keeps our input open as long as it lives.
        end_with_parent(sys.stdin.fileno())
        separate(spec)
        init = os.fork()
    except OSError as error:
        say_why(spec, error)
        return 1
    if init == 0:
        os.close(ours)
        hold(spec, alive)
    say(spec, b'{"pid": %d}' % init)
    os.waitpid(init, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())

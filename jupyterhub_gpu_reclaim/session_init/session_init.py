"""Pid 1 of a session: starts its programs, or waits for a restore.

The launcher executes it as ``python3 -I -S session_init.py …``; a container runs it
from the variable ``GPU_RECLAIM_INIT``, which holds this text. Only the standard
library, Python >= 3.7, one file: it runs in the user's image. It decides nothing and is
never part of a checkpoint (pid 1 cannot be in one).

It runs a command below a root that leads the saved tree or, if it is to hold a place,
waits for a restored root. It forwards SIGTERM, SIGINT and SIGHUP (root to server, too),
reaps everything, and ends with the root's status (128 + n for a signal) when the root
ends; the kernel then ends the rest. A holding init ends at once when it is told to.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import stat
import struct
import sys
import threading
from types import SimpleNamespace

RELAY_WRITE_FD = 3
RELAY_READ_FD = 4
RELAY_BLOCK = 65536
#: A pipe holds at most a MiB, unless root says otherwise.
RELAY_BLOCKS = 16
#: Next pid at a fresh start; the lower ones are for CRIU and the init.
FIRST_PID = 300
#: A pipe that polls writable takes this much (PIPE_BUF) without blocking.
ATOMIC_WRITE = 4096

PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

# <linux/prctl.h>, <linux/seccomp.h>, <linux/filter.h>, <asm-generic/unistd.h>
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000
BPF_LD_W_ABS, BPF_JGE_K, BPF_JGT_K, BPF_RET_K = 0x20, 0x35, 0x25, 0x06
BPF_JEQ_K = 0x15
IO_URING_SETUP, IO_URING_REGISTER = 425, 427
#: <linux/audit.h>; socket(2) of that architecture
ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
IPPROTO_MPTCP = 262
#: Of struct seccomp_data: the call, the architecture, the lower half of the third
#: argument (both are little-endian).
CALL, ARCHITECTURE, THIRD = 0, 4, 32

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: The init's name (comm) once its signals and its output are set up; the root's.
NAME = b"session-init"
ROOT_NAME = b"session-root"
#: From the init to the root: every pid below the server's is taken.
GO = signal.SIGUSR1
#: From the agent to a holding init: the value is the root's pid.
ROOT_NAMED = signal.SIGUSR1
AWAITED = {*FORWARDED, signal.SIGCHLD, ROOT_NAMED}


def parse(argv: list[str]) -> SimpleNamespace:
    """``JSON [-- COMMAND…]``, as ``command_line`` writes it."""
    return SimpleNamespace(**json.loads(argv[0]), command=argv[2:])


def prctl(option: int, value: int | bytes, more: bytes | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    argument = ctypes.c_ulong(value) if isinstance(value, int) else value
    if libc.prctl(option, argument, more, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "prctl")


def status_of(wait_status: int) -> int:
    if os.WIFSIGNALED(wait_status):
        return 128 + os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status)


def reap() -> dict[int, int]:
    """Collect every child that has ended: {pid: exit code}."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status_of(wait_status)


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


# --- starting -------------------------------------------------------------------------


def use_up_pids(first: int) -> None:
    """Make ``first`` the next pid of this namespace, or a later one if it was used."""
    # So the lower ones are free for CRIU and the init when the session comes back
    # elsewhere. Behind an image's own entry point (tini, start.sh) we are not pid 1,
    # but a low one.
    if os.getpid() >= first:
        return
    # Only root with a writable /proc may set the counter; a container forks instead.
    if os.getpid() == 1:
        with contextlib.suppress(OSError):
            counter = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)
            os.write(counter, str(first - 1).encode())
            os.close(counter)
            return
    pid = 0
    while pid < first - 1:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def become(args: SimpleNamespace) -> None:
    user = args.system_user
    if user is not None:
        os.setgroups(user["groups"])
        os.setresgid(user["gid"], user["gid"], user["gid"])
        os.setresuid(user["uid"], user["uid"], user["uid"])
        # Changing the uid clears this flag, and then the user could not look at
        # the own process under /proc.
        prctl(PR_SET_DUMPABLE, 1)
        if user["no_new_privileges"]:
            prctl(PR_SET_NO_NEW_PRIVS, 1)
    if args.chdir:
        os.chdir(args.chdir)


def deny_io_uring() -> None:
    """Answer io_uring with ENOSYS in all descendants; OSError: no filter allowed."""
    # CRIU cannot save its rings, and some programs open one just because they can:
    # libuv from 1.49 on, whatever ``UV_USE_IO_URING`` says (so Node, which JupyterLab
    # runs) and PyTorch's ranks. All do without it, as they must under Docker's default
    # profile.
    # The calls have these numbers on every architecture (<asm-generic/unistd.h>).
    install_filter(
        (BPF_LD_W_ABS, 0, 0, CALL),
        (BPF_JGE_K, 0, 2, IO_URING_SETUP),
        (BPF_JGT_K, 1, 0, IO_URING_REGISTER),
        (BPF_RET_K, 0, 0, SECCOMP_RET_ERRNO | errno.ENOSYS),
        (BPF_RET_K, 0, 0, SECCOMP_RET_ALLOW),
    )


def deny_multipath_tcp() -> None:
    """Hide multipath TCP from all descendants; OSError: no filter allowed."""
    # CRIU cannot save such a socket; Go's listeners are of that kind if it is offered.
    known = ARCHITECTURES.get(os.uname().machine)
    if known is None:
        return
    architecture, call = known
    install_filter(
        (BPF_LD_W_ABS, 0, 0, ARCHITECTURE),
        (BPF_JEQ_K, 0, 5, architecture),
        (BPF_LD_W_ABS, 0, 0, CALL),
        (BPF_JEQ_K, 0, 3, call),
        (BPF_LD_W_ABS, 0, 0, THIRD),
        (BPF_JEQ_K, 0, 1, IPPROTO_MPTCP),
        (BPF_RET_K, 0, 0, SECCOMP_RET_ERRNO | errno.EPROTONOSUPPORT),
        (BPF_RET_K, 0, 0, SECCOMP_RET_ALLOW),
    )


def install_filter(*instructions: tuple[int, int, int, int]) -> None:
    program = b"".join(struct.pack("=HBBI", *one) for one in instructions)
    filters = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: unsigned short, padding, pointer
    prog = struct.pack("@HP", len(program) // 8, ctypes.addressof(filters))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, prog)


def run_server(command: list[str]) -> int:
    """In the server's process: exec the command, or end as a shell would."""
    os.setsid()
    # An ignored signal stays ignored through exec: two by Python, and an interrupt
    # where the Hub was started by a script's "&".
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is what we want
    except OSError as error:
        complain(f"cannot run {command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126


def run_root(args: SimpleNamespace) -> int:
    """In the root's process: start the server, reap until it has ended."""
    # It leads the saved tree. As the "child subreaper" it inherits processes whose
    # parent has ended (``nohup train &`` in a terminal that was closed); under the init
    # they would not be in the checkpoint.
    os.setsid()
    # The init is about to make a thread, which takes a pid: the server's comes after.
    signal.sigwaitinfo({GO})
    try:
        prctl(PR_SET_NAME, ROOT_NAME)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        # Root may, and so may one with "no new privileges", as most pods do; for
        # another it would take ``sudo`` away.
        with contextlib.suppress(OSError):
            deny_io_uring()
            deny_multipath_tcp()
        become(args)
    except OSError as error:
        complain(f"cannot become the session's user: {error}")
        return 126
    server = os.fork()
    if server == 0:
        os._exit(run_server(args.command))
    while True:
        number = signal.sigwaitinfo(AWAITED).si_signo
        if number in FORWARDED:
            send(server, number)
        ended = reap()
        if server in ended:
            return ended[server]


def start_root(args: SimpleNamespace) -> int:
    """Fork the tree's root with its input, output and pid; its pid."""
    use_up_pids(FIRST_PID)
    root = os.fork()
    if root:
        return root
    code = 125
    try:
        if args.relay:
            os.dup2(RELAY_WRITE_FD, 1)
            os.dup2(RELAY_WRITE_FD, 2)
        os.closerange(3, 256)
        code = run_root(args)
    finally:
        os._exit(code)


# --- output ---------------------------------------------------------------------------


def open_relay() -> None:
    # With a relay the session's output goes into a pipe of the init's, which copies it
    # to its own output and drops what cannot be written. So the Hub may come and go,
    # and a restored tree writes into the new init's pipe, found under
    # ``/proc/<init>/fd``.
    ends = os.pipe()
    # Away from both numbers first, so that no dup2 closes the other end.
    aside = [fcntl.fcntl(end, fcntl.F_DUPFD, 16) for end in ends]
    os.dup2(aside[0], RELAY_READ_FD)
    os.dup2(aside[1], RELAY_WRITE_FD)
    for number in {*ends, *aside} - {RELAY_READ_FD, RELAY_WRITE_FD}:
        os.close(number)


def open_output() -> int | None:
    """The init's own output, so that writing to it never waits; None if closed."""
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.fstat(1).st_mode):
            # A new open file description: O_NONBLOCK must not touch the Hub's.
            return os.open("/proc/self/fd/1", os.O_WRONLY | os.O_NONBLOCK)
        return os.dup(1)
    return None


class Relay:
    """Copies the session's output; anything not taken at once is dropped."""

    def __init__(self) -> None:
        self._output = open_output()
        self._lock = threading.Lock()
        self._taker = select.poll()
        if self._output is not None:
            self._taker.register(self._output, select.POLLOUT)

    def run(self) -> None:
        while True:
            select.select([RELAY_READ_FD], [], [])
            self.copy()

    def copy(self) -> None:
        """Copy what is there now, as much as a pipe can hold; never waits."""
        # Not more: programs that outlive the root may write for ever; it must end.
        with self._lock:
            for _ in range(RELAY_BLOCKS):
                if not select.select([RELAY_READ_FD], [], [], 0)[0]:
                    return
                self._write(memoryview(os.read(RELAY_READ_FD, RELAY_BLOCK)))

    def _write(self, data: memoryview) -> None:
        while data and self._output is not None:
            events = self._taker.poll(0)
            if not events or not events[0][1] & select.POLLOUT:
                return
            try:
                data = data[os.write(self._output, data[:ATOMIC_WRITE]) :]
            except OSError:
                return


def complain(sentence: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"session_init: {sentence}\n".encode("utf-8", "replace"))


# --- pid 1 ----------------------------------------------------------------------------


def named_root(info: signal.struct_siginfo) -> int | None:
    """The root that the agent names; None for a signal from inside the session."""
    # The agent names it by ``sigqueue(SIGUSR1, root's pid)`` from outside of the pid
    # namespace. Until then no child's exit ends a holding init: CRIU's helpers come and
    # go.
    if info.si_pid != 0 or info.si_code != -1:  # SI_QUEUE, from an outer namespace
        return None
    # The kernel keeps a queued signal's value where a child's status would stand.
    return int(info.si_status)


def is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def serve(root: int | None) -> int:
    """Be pid 1 until the root has ended; the exit code."""
    ended: dict[int, int] = {}
    while True:
        info = signal.sigwaitinfo(AWAITED)
        if info.si_signo in FORWARDED:
            if root is None:
                return 128 + info.si_signo
            send(root, info.si_signo)
        elif info.si_signo == ROOT_NAMED:
            root = named_root(info) or root
            if root is not None and is_child(root):
                # Not the one of a restore that failed before, under the same pid.
                ended.pop(root, None)
        # A child that ends before the root is named may turn out to be it.
        ended.update(reap())
        if root is not None:
            if root in ended:
                return ended[root]
            ended.clear()


def main(argv: list[str]) -> int:
    args = parse(argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    os.closerange(3, 256)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if args.relay:
        open_relay()
    relay = Relay() if args.relay else None
    prctl(PR_SET_NAME, NAME)
    root = None if args.holding else start_root(args)
    if relay is not None:
        threading.Thread(target=relay.run, name="relay", daemon=True).start()
    if root is not None:
        send(root, GO)
    code = serve(root)
    if relay is not None:
        relay.copy()
    return code


if __name__ == "__main__":
    # Not sys.exit: the relay's thread may be in a write.
    os._exit(main(sys.argv[1:]))

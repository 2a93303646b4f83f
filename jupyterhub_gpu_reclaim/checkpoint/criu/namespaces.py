"""Runs a program of ours, from our file system, inside a session's namespaces.

Program, loader and libraries are reached through descriptors, so that nothing has to be
installed in the session's image; a helper (``nsenter``) does the work.

No descriptor, root or working folder of ours in the session's pid namespace leads to
our own file system, as that of an ordinary folder would: ``/proc/<pid>/fd/N/../..``. So
CRIU gets a mount of its own that is attached to nothing (open_tree(2), Linux 5.2):
above its root there is no parent, and it goes when its last descriptor is closed. What
CRIU only reads or runs is read-only there (mount_setattr(2), Linux 5.12), so that no
link of ``/proc/<pid>`` gives write access to our own copy.
"""

from __future__ import annotations

import ast
import ctypes
import marshal
import os
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu_module
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError, Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.linux.descriptors import closing, readable
from jupyterhub_gpu_reclaim.linux.libc import AT_FDCWD, checked, libc
from jupyterhub_gpu_reclaim.linux.mounts import new_file_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.criu.binary import Criu

# The same numbers on every architecture (<asm-generic/unistd.h>).
_OPEN_TREE, _MOUNT_SETATTR = 428, 442
# <linux/mount.h>, <linux/fcntl.h>, <linux/fs.h>
_AT_EMPTY_PATH: Final = 0x1000
_OPEN_TREE_CLONE: Final = 1
_RDONLY, _NOSUID, _NODEV = 0x1, 0x2, 0x4
_MS_PRIVATE: Final = 1 << 18
_ATTRIBUTES: Final = struct.Struct("=QQQQ")  # set, clear, propagation, user namespace


def open_detached(path: Path, *, read_only: bool) -> int:
    """A descriptor (O_PATH) of a detached mount of that folder or file alone.

    Raises:
        Refused: this kernel or container does not allow it (``criu_unusable``).
        OSError: there is no such path.
    """
    flags = _NOSUID | _NODEV | (_RDONLY if read_only else 0)
    attributes = _ATTRIBUTES.pack(flags, 0, _MS_PRIVATE, 0)
    clone = _OPEN_TREE_CLONE | os.O_CLOEXEC
    with _mounting(), ExitStack() as stack:
        descriptor = checked(
            libc.syscall(_OPEN_TREE, AT_FDCWD, os.fsencode(path), clone)
        )
        stack.callback(os.close, descriptor)
        checked(
            libc.syscall(
                _MOUNT_SETATTR,
                descriptor,
                b"",
                _AT_EMPTY_PATH,
                attributes,
                ctypes.c_size_t(len(attributes)),
            )
        )
        stack.pop_all()
    return descriptor


def open_scratch() -> int:
    """A descriptor of an empty folder in memory, open to everybody who has it.

    Raises:
        Refused: as :func:`open_detached`.
    """
    with _mounting():
        return new_file_system("tmpfs", _NOSUID | _NODEV, mode="1777")


@contextmanager
def _mounting() -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        why = f"the agent may not make a detached mount ({error.strerror})"
        raise Refused(Reason.CRIU_UNUSABLE, why=why) from None


HELPER = Path(__file__).with_name("nsenter.py")
#: The helper's own work, up to the program's start, takes some 50 ms.
START_PATIENCE = 30.0


class Helper:
    """The program of ours that enters namespaces, and what it has reported.

    Its input is one object (marshal), which names the descriptor that it reports to, by
    lines of Python's own notation.
    """

    def __init__(self, spec: dict[str, Any], pass_fds: Sequence[int]) -> None:
        self._report, report = os.pipe()
        with closing(report):
            self.popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(HELPER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[report, *pass_fds],
                cwd="/",
            )
        self._spec = {**spec, "report": report}
        self._rest = b""
        self.facts: dict[str, Any] = {}

    def tell(self) -> None:
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):
            self.popen.stdin.write(marshal.dumps(self._spec))
            self.popen.stdin.flush()

    def close_input(self) -> None:
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):
            self.popen.stdin.close()

    def wait_for(self, *names: str, deadline: float) -> None:
        """Wait until it has reported all of these.

        Raises:
            ReclaimError: it has reported an error, or time was up (``internal``).
        """
        while not {*names} <= self.facts.keys():
            if not self.read(deadline) or "error" in self.facts:
                why = self.facts.get("error", "no answer from the helper")
                raise ReclaimError(Reason.INTERNAL, detail=f"entering: {why}")

    def read(self, deadline: float) -> bool:
        """Take news in; False when none came in time or none will ever come."""
        if not readable([self], deadline - time.monotonic()):
            return False
        data = os.read(self._report, 65536)
        if not data:
            # The helper itself was ended: how the program ended is unknown.
            self.facts.setdefault("status", 255)
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.facts.update(ast.literal_eval(line.decode()))
        return True

    def fileno(self) -> int:
        return self._report

    def close(self) -> None:
        os.close(self._report)


class Inside(Helper):
    """A program that runs inside; its pids here and in the session; its end."""

    pid = inner_pid = 0

    def begin(self, prepare: Callable[[int], None] | None) -> None:
        """Start the program.

        Raises:
            ReclaimError: the namespaces could not be entered, or time was up.
        """
        try:
            if prepare is not None:
                prepare(self.popen.pid)
            self.tell()
        finally:
            self.close_input()  # a helper without a word ends
        self.wait_for("pid", "inner_pid", deadline=time.monotonic() + START_PATIENCE)
        self.pid, self.inner_pid = self.facts["pid"], self.facts["inner_pid"]

    def poll(self) -> int | None:
        """The program's exit status (-n for a signal); None while it runs."""
        while "status" not in self.facts and self.read(time.monotonic()):
            pass
        if "error" in self.facts:
            return 127
        status = self.facts.get("status")
        return None if status is None else int(status)

    def wait(self, deadline: float) -> int | None:
        """Wait for the end until that time (``time.monotonic()``); None if it runs."""
        while (status := self.poll()) is None and time.monotonic() < deadline:
            self.read(deadline)
        return status

    def signal(self, number: int) -> None:
        """Signal the program; one that has ended is no error."""
        try:
            # The helper has not reaped it before it has reported the status.
            if self.pid and self.poll() is None:
                os.kill(self.pid, number)
        except ProcessLookupError:
            return

    def close(self) -> None:
        super().close()
        if self.facts.keys() & {"status", "error"} or not self.pid:
            self.popen.wait(START_PATIENCE)


def path_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def run_inside(
    criu: Criu,
    arguments: Sequence[str],
    descriptors: Iterable[int] = (),
    *,
    init_pid: int,
    init_start: int,
    last_pid: int = 0,
    own_ipc: bool = False,
    prepare: Callable[[int], None] | None = None,
) -> Inside:
    """Start CRIU inside the namespaces of a session's init, with those descriptors.

    Raises:
        NotFound: there is no such init.
        Refused: this kernel or container allows no detached mount.
        ReclaimError: the namespaces could not be entered.
    """
    with ExitStack() as stack:
        pass_on = list(descriptors)

        def path_at(path: Path) -> str:
            descriptor = open_detached(path, read_only=True)
            stack.callback(os.close, descriptor)
            pass_on.append(descriptor)
            return path_of(descriptor)

        pidfd = stack.enter_context(closing(open_init(init_pid, init_start)))
        loader, libraries = path_at(criu.loader), path_at(criu.libraries)
        # The session's file system is its user's: take no library from there.
        start = [loader, "--inhibit-cache", "--library-path", libraries]
        start.append(path_at(criu.binary))
        spec = {
            "pidfd": pidfd,
            "last_pid": last_pid,
            "own_ipc": own_ipc,
            "argv": [*start, *arguments],
            "env": criu_module.ENVIRONMENT,
            "close": pass_on,
        }
        inside = Inside(spec, [pidfd, *pass_on])
    try:
        inside.begin(prepare)
    except BaseException:
        inside.close()
        raise
    return inside


def open_init(pid: int, start: int) -> int:
    """A pidfd of exactly that process.

    Raises:
        NotFound: it has ended.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise NotFound(Reason.UNKNOWN_SESSION, session=f"under process {pid}") from None
    if processes.start_time(pid) != start:
        os.close(pidfd)
        raise NotFound(Reason.UNKNOWN_SESSION, session=f"under process {pid}")
    return pidfd

"""Holds a process still, or makes it run system calls that it did not ask for.

Held threads continue as if nothing had happened: registers, signal mask and memory are
restored, so that the kernel restarts a call in which one slept. There is a limit for
holding, and for each call, but none for restoring: a thread left in the middle would go
on with our registers, or never.

If the agent is killed, the kernel lets the threads continue, unless a signal has
stopped their process; in the milliseconds of a call that ends a running process, so a
signal must stop it before (``continuing.stopped``). A stopped one keeps our registers
until the next agent restores its own from a file (:func:`give_back`).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import mmap
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.linux import architecture, procfs
from jupyterhub_gpu_reclaim.linux.kept_registers import Kept, KeptRegisters
from jupyterhub_gpu_reclaim.linux.libc import libc
from jupyterhub_gpu_reclaim.linux.processes import STOPPED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

# <linux/ptrace.h>
_CONT, _SYSCALL, _DETACH = 7, 24, 17
_GETREGSET, _SETREGSET = 0x4204, 0x4205
_SEIZE, _INTERRUPT = 0x4206, 0x4207
_GETSIGMASK, _SETSIGMASK = 0x420A, 0x420B
_GET_DISPATCH: Final = 0x4211
_DISPATCH_BYTES: Final = 32
_EVENT_STOP: Final = 128
_SYSGOOD: Final = 1  #: PTRACE_O_TRACESYSGOOD
#: PTRACE_O_SUSPEND_SECCOMP: a filter that ends a process for a call of its own must not
#: do so for one of ours.
_NO_FILTERS: Final = 1 << 21
_PRSTATUS: Final = 1
_WALL: Final = 0x40000000
_SYSCALL_STOP: Final = signal.SIGTRAP | 0x80
#: As many bytes as the machine has registers, and more.
_MOST_REGISTERS: Final = 1024
_WORD: Final = (1 << 64) - 1
_SIGCONT: Final = 1 << (signal.SIGCONT - 1)
#: Nobody can block these.
_ALWAYS_HEARD: Final = 1 << (signal.SIGKILL - 1) | 1 << (signal.SIGSTOP - 1)
#: The signals that threads block which we make do something.
_OUR_MASKS: Final = {_WORD & ~_ALWAYS_HEARD, _WORD & ~_ALWAYS_HEARD & ~_SIGCONT}
#: -ERESTART_RESTARTBLOCK, -ERESTARTNOHAND (include/linux/errno.h), and -EINTR.
_RESTART_BLOCK, _NO_HANDLER, _INTERRUPTED = _WORD - 515, _WORD - 513, _WORD - 3
_PAUSE_SECONDS: Final = 0.0005
#: A thread stops within microseconds if a processor is free. Whoever gives its own up
#: (sched_yield(2)) to others, who use it, waits for the turn of each of them, a few ms
#: each; one that sleeps keeps its place.
_QUICK_LOOKS: Final = 5
_FIRST_PAUSE_SECONDS: Final = 0.00001
#: In which the threads of a process stand still, and each of its calls returns.
SECONDS: Final = 10.0
#: In which the kernel lets go the threads of an agent that was killed.
_LET_GO_SECONDS: Final = 5.0

_PROT_READ_WRITE, _PRIVATE_ANONYMOUS = 3, 0x22
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [
    ctypes.c_long,
    ctypes.c_long,
    ctypes.c_void_p,
    ctypes.c_void_p,
]


kept = KeptRegisters()


class TraceFailed(OSError):
    """The process could not be made to do it; it runs as before, or has ended."""


class _Ended(TraceFailed): ...


class Unsuited(TraceFailed):
    """The process stands still, but no call can be made in it."""


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Traced:
    """A process held still, which can be made to run calls. See :func:`stopped`."""

    def __init__(
        self,
        pid: int,
        thread: _Thread,
        code: int,
        others: Mapping[int, _Thread],
    ) -> None:
        self.pid = pid
        self._thread = thread
        self._code = code
        self._others = others

    @contextlib.contextmanager
    def thread(self, tid: int) -> Iterator[Traced]:
        """A thread of the process, to make its own calls inside the block.

        Raises:
            TraceFailed: it has ended.
        """
        thread = self._others.get(tid)
        if thread is None:
            raise TraceFailed(0, f"thread {tid} has ended")
        if thread is self._thread:
            yield self
            return
        thread.begin()
        try:
            yield Traced(self.pid, thread, self._code, {})
        finally:
            thread.end()

    def call(self, name: str, *arguments: int) -> int:
        """Let it run one system call, and return its result.

        Raises:
            TraceFailed: with the call's own errno, or because the process ended.
        """
        result = self._thread.call(self._code, name, arguments)
        if result < 0:
            raise TraceFailed(-result, os.strerror(-result), f"system call {name}")
        return result

    def emulates(self, tid: int) -> bool:
        """Whether a thread emulates system calls itself, as Wine does.

        False where this kernel (before Linux 6.4) does not tell.
        """
        buffer = ctypes.create_string_buffer(_DISPATCH_BYTES)
        with contextlib.suppress(OSError):
            _ptrace(_GET_DISPATCH, tid, len(buffer), ctypes.addressof(buffer))
        return any(buffer.raw)

    @contextlib.contextmanager
    def text(self, content: str | bytes) -> Iterator[int]:
        """The address of a text (less than a page) in the process's own memory."""
        address = self.call(
            "mmap", 0, mmap.PAGESIZE, _PROT_READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0
        )
        try:
            with open(f"/proc/{self.pid}/mem", "r+b", 0) as memory:  # noqa: PTH123
                data = os.fsencode(content)[: mmap.PAGESIZE - 1]
                os.pwrite(memory.fileno(), data, address)
            yield address
        finally:
            self.call("munmap", address, mmap.PAGESIZE)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[Traced]:
    """Hold a process with all its threads; they go on at the end of the block.

    A process that a signal had stopped is stopped again when the block has ended. Must
    be used by one thread from begin to end.

    Raises:
        TraceFailed: it has ended, is traced by another process, does not stand still in
            time, or this kind of machine is unknown.
    """
    with _held(pid, frozenset(), SECONDS) as threads:
        leader = threads.get(pid)
        if leader is None:
            raise TraceFailed(0, f"process {pid} has ended")
        code = _find_code(pid)
        leader.begin()
        try:
            yield Traced(pid, leader, code, threads)
        finally:
            leader.end()


@contextlib.contextmanager
def standing(
    pid: int, *, but: Collection[int], seconds: float
) -> Iterator[Collection[int]]:
    """Hold all threads of a process but some; the ids of those held.

    They go on at the end of the block. A signal that stops the process inside the block
    holds the others, too; one that continues it leaves these standing. Must be used by
    one thread from begin to end.

    Raises:
        TraceFailed: as :func:`stopped`.
    """
    with _held(pid, frozenset(but), seconds) as threads:
        yield threads.keys()


def begin_again(pid: int, calls: Mapping[int, int]) -> None:
    """Have the kernel restart calls that it would only resume, or end; blocks.

    For a process that a signal has stopped, which stays so: thread → the number of the
    call that was interrupted. A thread that was not in such a call is left as it was.

    Raises:
        TraceFailed: as :func:`stopped`.
    """
    others = frozenset(tasks(pid)) - calls.keys()
    with _held(pid, others, SECONDS) as threads:
        for tid, thread in threads.items():
            if tid in calls:
                thread.begin_again(calls[tid])


def go_on(pid: int, pidfd: int) -> None:
    """Continue a process that a signal has stopped, and take SIGCONT away from it.

    Raises:
        TraceFailed: as :func:`stopped`; the signal may have been sent by then.
    """
    with _held(pid, frozenset(), SECONDS) as threads:
        if threads:
            # The others stand: only this one can take it.
            next(iter(threads.values())).take_continue(pidfd)


def stop_plainly(pid: int, pidfd: int) -> None:
    """Have a process that its terminal has stopped be stopped by SIGSTOP instead.

    Its threads stand meanwhile, and each of the two signals takes the other back.

    Raises:
        TraceFailed: as :func:`stopped`.
    """
    with _held(pid, frozenset(), SECONDS) as threads:
        by_terminal = {signal.SIGTTIN, signal.SIGTTOU}
        if any(thread.stopped_by in by_terminal for thread in threads.values()):
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)


def give_back() -> list[OSError]:
    """Restore threads that a killed agent was making call.

    Their processes must not have been continued since. Those that ran before go on.

    Returns:
        Why some could not be restored.
    """
    failed = []
    for one in sorted(kept.left(), key=lambda one: not one.registers):
        try:
            if one.registers:
                _give_back(one)
            else:
                os.kill(one.tid, signal.SIGCONT)
        except OSError as error:
            failed.append(error)
        else:
            kept.drop(one)
    return failed


def _give_back(one: Kept) -> None:
    until = time.monotonic() + _LET_GO_SECONDS
    # An agent that has ended may still be its tracer for a moment.
    while procfs.status(one.tid).get("TracerPid", "0") != "0":
        if time.monotonic() > until:
            raise TraceFailed(0, f"thread {one.tid} is held by another")
        time.sleep(_PAUSE_SECONDS)
    pid = int(procfs.status(one.tid).get("Tgid", one.tid))
    try:
        code = _find_code(pid)
    except Unsuited:
        code = 0  # no call was made in it
    others = frozenset(tasks(pid)) - {one.tid}
    with _held(pid, others, SECONDS) as threads:
        for thread in threads.values():
            thread.give_back(one, code)


@contextlib.contextmanager
def _held(
    pid: int, but: frozenset[int], seconds: float
) -> Iterator[dict[int, _Thread]]:
    if not architecture.is_known():
        raise TraceFailed(0, f"not on {architecture.name()}")
    threads: dict[int, _Thread] = {}
    deadline = time.monotonic() + seconds
    try:
        # Those that are not held yet may make new ones.
        seen = set(but)
        while new := [tid for tid in tasks(pid) if tid not in seen]:
            seen.update(new)
            # First all of them: each waits for its turn on a processor.
            for tid in new:
                if (thread := _seize(tid, seconds, deadline)) is not None:
                    threads[tid] = thread
            for tid in new:
                if tid in threads and not threads[tid].stands():
                    del threads[tid]
        yield threads
    finally:
        asked = [one for one in threads.values() if one.ask_again()]
        stopped_again = [one for one in asked if one.is_to_stop_again()]
        for thread in threads.values():
            thread.detach()
        for thread in stopped_again:
            thread.wait_stopped_again()


class _Thread:
    def __init__(self, tid: int, seconds: float, deadline: float) -> None:
        self._tid = tid
        self._seconds = seconds
        self._deadline = deadline
        self._runs = True
        self._was_stopped = self._is_stopped()
        self.stopped_by = 0  #: what has stopped its process; see :meth:`wait_stopped`
        self._signal = 0  #: one that came meanwhile, to be given back
        self._kept = Kept(tid)

    def wait_stopped(self) -> int:
        """Wait for the stop that was requested; what has stopped it, or ``SIGTRAP``."""
        while (status := self._wait()) >> 16 != _EVENT_STOP:
            # A signal came first. It is delivered, and the stop comes next: any other
            # stop takes back what was asked for (kernel/signal.c, ptrace_stop).
            _ptrace(_INTERRUPT, self._tid)
            self._go_on(_CONT, os.WSTOPSIG(status))
        self.stopped_by = os.WSTOPSIG(status)
        return self.stopped_by

    def begin(self, mask: int = _WORD) -> None:
        """Remember its state, and keep the signals of the mask off it.

        Raises:
            OSError: it has ended, or its state cannot be kept.
        """
        self._kept = Kept(self._tid, self._blocked(), _get_registers(self._tid))
        kept.keep(self._kept)
        self._block(mask)

    def call(self, code: int, name: str, arguments: tuple[int, ...]) -> int:
        """Run one system call; its result, negative for an error.

        Raises:
            TraceFailed: it has ended, or the call has not returned in time.
            Unsuited: it is a 32-bit program.
        """
        layout = architecture.REGISTERS
        if len(self._kept.registers) != layout.size:
            raise Unsuited(0, "a 32-bit program")
        values = list(layout.unpack(self._kept.registers))
        for register, argument in zip(architecture.ARGUMENTS, arguments, strict=False):
            values[register] = argument & _WORD
        values[architecture.COUNTER] = code
        values[architecture.RESULT] = architecture.CALLS[name]
        values[architecture.CALL] = _WORD
        _set_registers(self._tid, layout.pack(*values))
        self._deadline = time.monotonic() + self._seconds
        try:
            self._run_to_syscall_stop()
            self._run_to_syscall_stop()
        except TraceFailed:
            if self._runs:  # in the call; others may have to follow
                with contextlib.suppress(OSError):
                    self._stop()
            raise
        result: int = layout.unpack(_get_registers(self._tid))[architecture.RESULT]
        return result - (1 << 64) if result >> 63 else result

    def end(self) -> None:
        """Bring it to the kind of stop where it was found, and restore it."""
        # Only from there does the kernel resume a call that was interrupted.
        self._stop()
        _set_registers(self._tid, self._kept.registers)
        self._block(self._kept.mask)
        kept.drop(self._kept)

    def give_back(self, one: Kept, code: int) -> None:
        """Restore what was kept, unless it has that, or has gone on with it."""
        now = _get_registers(self._tid)
        if len(now) == architecture.REGISTERS.size == len(one.registers):
            counter = architecture.REGISTERS.unpack(now)[architecture.COUNTER]
            if counter in {code, code + len(architecture.INSTRUCTION)}:
                _set_registers(self._tid, one.registers)
        if self._blocked() in _OUR_MASKS:
            self._block(one.mask)

    def begin_again(self, number: int) -> None:
        # Not for a 32-bit program.
        registers = _get_registers(self._tid)
        if len(registers) != architecture.REGISTERS.size:
            return
        values = list(architecture.REGISTERS.unpack(registers))
        if values[architecture.RESULT] in {_RESTART_BLOCK, _INTERRUPTED}:
            values[architecture.RESULT] = _NO_HANDLER
            values[architecture.CALL] = number
            _set_registers(self._tid, architecture.REGISTERS.pack(*values))

    def take_continue(self, pidfd: int) -> None:
        """Have SIGCONT sent to its process and delivered to it, and drop it."""
        self.begin(_WORD & ~_SIGCONT)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            self._deadline = time.monotonic() + self._seconds
            self._go_on(_CONT)
            while os.WSTOPSIG(status := self._wait()) != signal.SIGCONT:
                self._keep_signal(status)
                self._go_on(_CONT)
        except TraceFailed:
            if self._runs:
                self._stop()
            raise
        finally:
            self._block(self._kept.mask)
            kept.drop(self._kept)

    def _blocked(self) -> int:
        held = ctypes.create_string_buffer(8)
        _ptrace(_GETSIGMASK, self._tid, 8, ctypes.addressof(held))
        return int.from_bytes(held.raw, sys.byteorder)

    def _block(self, mask: int) -> None:
        wanted = ctypes.create_string_buffer(mask.to_bytes(8, sys.byteorder), 8)
        _ptrace(_SETSIGMASK, self._tid, 8, ctypes.addressof(wanted))

    def detach(self) -> None:
        """Let it go; one that has ended meanwhile needs nothing."""
        # A running one is waited for: only we can let it go, and it is going to stop.
        self._deadline = math.inf
        with contextlib.suppress(OSError):
            if self._runs:
                self._keep_signal(self._wait())
            _ptrace(_DETACH, self._tid, 0, self._signal)

    def stands(self) -> bool:
        """Wait until it does; False when it has ended meanwhile.

        Raises:
            OSError: it does not stand still in time.
        """
        try:
            self.wait_stopped()
        except (ProcessLookupError, _Ended):
            self.detach()
            return False
        return True

    def ask_again(self) -> bool:
        """Have it make another stop, if a signal had stopped its process."""
        if not self._was_stopped:
            return False
        self._deadline = math.inf
        try:
            _ptrace(_INTERRUPT, self._tid)
            self._go_on(_CONT)
        except OSError:
            return False  # it has ended
        return True

    def is_to_stop_again(self) -> bool:
        """Whether that stop says (ptrace(2)) that its process was not continued."""
        try:
            return self.wait_stopped() != signal.SIGTRAP
        except OSError:
            return False  # it has ended

    def wait_stopped_again(self) -> None:
        """Wait until it is stopped again: the kernel wakes it for that."""
        until = time.monotonic() + SECONDS
        while not self._is_stopped() and time.monotonic() < until:
            time.sleep(_PAUSE_SECONDS)

    def _is_stopped(self) -> bool:
        # /proc/<tid>/stat would add up the times of all the other threads.
        return procfs.stat(self._tid, self._tid)[:1] == [STOPPED]

    def _run_to_syscall_stop(self) -> None:
        while True:
            self._go_on(_SYSCALL)
            status = self._wait()
            if os.WSTOPSIG(status) == _SYSCALL_STOP:
                return
            self._keep_signal(status)

    def _stop(self) -> None:
        """Have it stop between two instructions, however long that takes."""
        self._deadline = math.inf
        _ptrace(_INTERRUPT, self._tid)
        if not self._runs:
            self._go_on(_CONT)
        while (status := self._wait()) >> 16 != _EVENT_STOP:
            self._keep_signal(status)
            _ptrace(_INTERRUPT, self._tid)  # as in :meth:`wait_stopped`
            self._go_on(_CONT)

    def _keep_signal(self, status: int) -> None:
        if status >> 16 == 0 and os.WSTOPSIG(status) != _SYSCALL_STOP:
            self._signal = os.WSTOPSIG(status)

    def _go_on(self, how: int, number: int = 0) -> None:
        _ptrace(how, self._tid, 0, number)
        self._runs = True

    def _wait(self) -> int:
        for look in itertools.count():
            try:
                found, status = os.waitpid(self._tid, os.WNOHANG | _WALL)
            except ChildProcessError as error:
                raise _Ended(0, f"thread {self._tid} has ended") from error
            if found and os.WIFSTOPPED(status):
                self._runs = False
                return status
            if found:
                raise _Ended(0, f"thread {self._tid} has ended")
            if time.monotonic() > self._deadline:
                raise TraceFailed(0, f"thread {self._tid} does not stand still")
            # The kernel tells of a stop by SIGCHLD to the whole agent only.
            if look >= _QUICK_LOOKS:
                doubled = _FIRST_PAUSE_SECONDS * 2 ** min(look - _QUICK_LOOKS, 10)
                time.sleep(min(doubled, _PAUSE_SECONDS))
        raise AssertionError


def _seize(tid: int, seconds: float, deadline: float) -> _Thread | None:
    thread = _Thread(tid, seconds, deadline)
    try:
        try:
            _ptrace(_SEIZE, tid, 0, _SYSGOOD | _NO_FILTERS)
        except PermissionError:  # not to us, who have a filter ourselves
            _ptrace(_SEIZE, tid, 0, _SYSGOOD)
    except ProcessLookupError:
        return None
    except OSError as error:
        raise TraceFailed(error.errno, error.strerror, f"thread {tid}") from error
    try:
        _ptrace(_INTERRUPT, tid)
    except OSError as error:
        thread.detach()
        if isinstance(error, ProcessLookupError):
            return None
        raise
    return thread


def tasks(pid: int) -> list[int]:
    try:
        return [int(path.name) for path in (procfs.PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []


def _find_code(pid: int) -> int:
    """The address of an instruction that makes a call, in the kernel's own vdso.

    Raises:
        Unsuited: there is none.
    """
    for line in procfs.text(pid, "maps").splitlines():
        if line.endswith("[vdso]"):
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            vdso = procfs.memory(pid, start, end - start)
            if (offset := vdso.find(architecture.INSTRUCTION)) >= 0:
                return start + offset
    raise Unsuited(0, f"process {pid} has no vdso")


def _get_registers(tid: int) -> bytes:
    buffer = ctypes.create_string_buffer(_MOST_REGISTERS)
    vector = _Iovec(ctypes.addressof(buffer), len(buffer))
    _ptrace(_GETREGSET, tid, _PRSTATUS, ctypes.addressof(vector))
    return buffer.raw[: vector.length]


def _set_registers(tid: int, values: bytes) -> None:
    buffer = ctypes.create_string_buffer(values, len(values))
    vector = _Iovec(ctypes.addressof(buffer), len(buffer))
    _ptrace(_SETREGSET, tid, _PRSTATUS, ctypes.addressof(vector))


def _ptrace(request: int, tid: int, address: int = 0, data: int = 0) -> None:
    if libc.ptrace(request, tid, address, data) == -1:
        code = ctypes.get_errno()
        if code:
            raise OSError(code, os.strerror(code), f"ptrace of {tid}")

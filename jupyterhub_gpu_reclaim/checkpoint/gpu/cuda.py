"""Moves a session's GPU memory into its processes' own, and back.

:func:`empty` runs before CRIU saves a tree; :func:`fill` after it has come back, and to
undo an ``empty``. Each call goes by the state that the driver reports for a process, so
it may be repeated after a crash, and takes up where the last one ended: ``empty`` takes
a process from running over locked to checkpointed, ``fill`` back over locked, and what
has failed is refused (``docs/explanation/gpu.md``).

No program may run while its GPU memory is away: JAX, for one, has a thread that looks
at memory which the driver maps, and ends by a segmentation fault when it is not there.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.gpu import driver as cuda_driver
from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import CudaState, DriverError
from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import DEVICES, held_by
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import continuing, processes, procfs, ptrace
from jupyterhub_gpu_reclaim.linux.libc import AT_FDCWD

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from concurrent.futures import Future

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver
    from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import HeldDevices
    from jupyterhub_gpu_reclaim.linux.processes import Process

_VERSION = Path("/sys/module/nvidia/version")
#: Seconds in which threads must stand still; one that waits for a disk does not.
_STILL_SECONDS = 30.0
_CUPTI = "torch.profiler or another that uses CUPTI"
#: States of a thread that a signal has stopped, or that is no more.
_STILL = processes.DEAD | {processes.STOPPED}


def driver_version() -> str:
    """The version of the kernel's driver, e.g. 580.159.04; empty without one."""
    try:
        return _VERSION.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def empty(
    driver: Driver,
    tasks: Sequence[Process],
    *,
    lock_seconds: float,
    seconds: float,
    settle: Callable[[], None] = lambda: None,
    cancel: Cancel | None = None,
) -> None:
    """Move the GPU memory of those processes into their own; all or nothing.

    They run, and afterwards they hold no GPU and are stopped. ``settle`` is called when
    all are locked and held, before any memory moves: none forks any more, and each has
    its devices still.

    Raises:
        RolledBack: one of them could not (``gpu_busy_too_long``, ``gpu_profiled``,
            ``gpu_unsupported``, ``gpu_failed``), ``settle`` has raised, or it was
            cancelled; all have their memory, and those whose memory had begun to move
            are stopped.
        ReclaimError: likewise, but one could not be brought back (``gpu_stuck``).
    """
    if not tasks:
        return
    # Each is held by the thread that moves its memory; the last to hold one settles.
    standing = threading.Barrier(len(tasks), settle)
    try:
        _each(tasks, lambda p: _lock(driver, p, lock_seconds))
        if cancel is not None:
            cancel.check()
        _each(tasks, lambda p: _checkpoint(driver, p, seconds, standing))
        if cancel is not None:
            cancel.check()
    except ReclaimError as error:
        fill(driver, tasks, seconds=seconds)
        raise RolledBack(
            error.reason,
            detail=error.detail,
            retryable=error.retryable,
            **error.facts,
        ) from error


def fill(
    driver: Driver,
    tasks: Sequence[Process],
    *,
    seconds: float,
    moves: Sequence[tuple[str, str]] = (),
) -> None:
    """Move the GPU memory of those processes back. Idempotent.

    Those that are stopped stay so, and may be continued afterwards; one that ran
    without its memory is stopped as well. ``moves``, for another machine's cards, are
    pairs of uuids (old, new) that name every card.

    Raises:
        ReclaimError: one of them could not get it back (``gpu_stuck``). The others have
            theirs.
    """
    failures = _try_each(tasks, lambda p: _fill(driver, p, seconds, moves))
    if failures:
        raise failures[0]


def _lock(driver: Driver, process: Process, seconds: float) -> None:
    if _state(driver, process) is CudaState.RUNNING:
        try:
            driver.lock(process.pid, seconds=seconds)
        except DriverError as error:
            if error.code == cuda_driver.NOT_READY:
                raise ReclaimError(
                    Reason.GPU_BUSY_TOO_LONG, **process.facts, seconds=seconds
                ) from None
            if error.code == cuda_driver.NOT_SUPPORTED:
                # Seen with CUPTI alone, for the rest of the process's life.
                raise ReclaimError(
                    Reason.GPU_PROFILED, **process.facts, tool=_CUPTI
                ) from None
            raise _failed(process, error) from error


def _checkpoint(
    driver: Driver, process: Process, seconds: float, standing: threading.Barrier
) -> None:
    try:
        _move_out(driver, process, seconds, standing)
    except BaseException:
        standing.abort()  # the others would wait for ever
        raise


def _move_out(
    driver: Driver, process: Process, seconds: float, standing: threading.Barrier
) -> None:
    if _state(driver, process) is not CudaState.LOCKED:
        standing.wait()
        return
    with _held(driver, process) as threads:
        standing.wait()
        with _stopped_afterwards(process, threads):
            try:
                driver.checkpoint(process.pid, seconds=seconds)
            except DriverError as error:
                if error.code == cuda_driver.NOT_SUPPORTED:
                    raise ReclaimError(
                        Reason.GPU_UNSUPPORTED, **process.facts, detail=str(error)
                    ) from None
                raise
            state = _state(driver, process)
            if state is not CudaState.CHECKPOINTED or held_by(process.pid):
                raise _failed(process, f"it is {state.name.lower()} and holds a device")
    _wait_still(process, {process.pid})


def _fill(
    driver: Driver,
    process: Process,
    seconds: float,
    moves: Sequence[tuple[str, str]],
) -> None:
    stopped = processes.is_stopped(process)
    if not stopped:
        state = _state(driver, process, seconds)
        if state is CudaState.LOCKED:
            driver.unlock(process.pid)
        if state is not CudaState.CHECKPOINTED:
            return
    with _held(driver, process) as threads:
        if stopped:
            processes.send(process, signal.SIGCONT)
        with _stopped_afterwards(process, threads):
            # It waits for what another may have begun that was killed.
            state = _state(driver, process, seconds)
            if state is CudaState.CHECKPOINTED:
                driver.restore(process.pid, seconds=seconds, moves=moves)
            if state is not CudaState.RUNNING:
                driver.unlock(process.pid)
    _wait_still(process, {process.pid})


def _wait_still(process: Process, tids: set[int]) -> None:
    """Wait until a signal has stopped those threads of it, or they have ended.

    Raises:
        ReclaimError: they run on (``gpu_failed``).
    """
    deadline = time.monotonic() + _STILL_SECONDS
    while any(_runs(process.pid, tid) for tid in tids):
        if time.monotonic() > deadline:
            raise _failed(process, "it does not stand still")
        # No event reports that a process not our child has stopped.
        time.sleep(0.0005)


def _runs(pid: int, tid: int) -> bool:
    fields = procfs.stat(pid, tid)
    return bool(fields) and fields[0] not in _STILL


class _Threads(NamedTuple):
    running: set[int]  #: the driver's own; its first one where there is none
    held: Collection[int]


# So while memory moves all threads are held but the driver's own (which a stopped
# process would stop, too), and what was emptied is stopped before they are released.
@contextlib.contextmanager
def _held(driver: Driver, process: Process) -> Iterator[_Threads]:
    """Hold all but the driver's own thread of the process inside the block.

    One without such a thread (it uses NVML only) has no memory to be looked at, and
    runs as it did.
    """
    thread = driver.thread(process.pid)
    if thread is None:
        yield _Threads({process.pid}, ())
        return
    running = _ids(process.pid, thread)
    try:
        with ptrace.standing(process.pid, but=running, seconds=_STILL_SECONDS) as held:
            yield _Threads(running, held)
    except ptrace.TraceFailed as error:
        raise _failed(process, error) from error


# Each thread has a stop signal waiting meanwhile: when we are killed, and the kernel
# lets them go, they stop before they run.
@contextlib.contextmanager
def _stopped_afterwards(process: Process, threads: _Threads) -> Iterator[None]:
    """Stop a held process at the end of the block, and also when we are killed in it.

    The kernel lets its threads go then. A stop signal waits for each, and the first
    that takes it stops them all; the next signal that lets the process go on takes away
    the others.
    """
    processes.send_to_threads(process, threads.held, signal.SIGSTOP)
    try:
        yield
    finally:
        # One that runs takes it, when it comes to run: until then the process is not
        # stopped, and a thread that is released runs on.
        processes.send(process, signal.SIGSTOP)
        _wait_still(process, threads.running)


def _ids(pid: int, thread: int) -> set[int]:
    found = {tid: procfs.inner_id(procfs.status(pid, tid)) for tid in ptrace.tasks(pid)}
    return {tid for tid, inner in found.items() if thread in (tid, inner)}


def _state(
    driver: Driver,
    process: Process,
    seconds: float = cuda_driver.QUICK_SECONDS,
) -> CudaState:
    state = driver.state(process.pid, seconds=seconds)
    if state is None or state is CudaState.FAILED:
        raise _failed(process, "its GPU's state is lost")
    return state


def _each(tasks: Sequence[Process], work: Callable[[Process], None]) -> None:
    """Run it for all at once; raise the first failure when all have ended."""
    futures = _all_at_once(tasks, work)
    for process, future in zip(tasks, futures, strict=True):
        try:
            future.result()
        except threading.BrokenBarrierError:
            continue  # another thread failed first: its failure counts
        except DriverError as error:
            raise _failed(process, error) from error


def _try_each(
    tasks: Sequence[Process], work: Callable[[Process], None]
) -> list[ReclaimError]:
    failures = []
    futures = _all_at_once(tasks, work)
    for process, future in zip(tasks, futures, strict=True):
        error = future.exception()
        ended = processes.start_time(process.pid) != process.start_time
        if error is None or ended:
            continue
        if not isinstance(error, DriverError | ReclaimError):
            raise error
        facts = {**process.facts, "detail": str(error)}
        failures.append(ReclaimError(Reason.GPU_STUCK, **facts))
    return failures


def _all_at_once(
    tasks: Sequence[Process], work: Callable[[Process], None]
) -> list[Future[None]]:
    with ThreadPoolExecutor(max(1, len(tasks)), thread_name_prefix="cuda") as pool:
        return [pool.submit(work, process) for process in tasks]


def _failed(process: Process, why: object) -> ReclaimError:
    return ReclaimError(Reason.GPU_FAILED, **process.facts, detail=str(why))


# <linux/fcntl.h>, <linux/mman.h>: the same on every known machine.
_READ_WRITE, _CLOEXEC = 2, 0o2000000
_NO_ACCESS, _PRIVATE_ANONYMOUS_FIXED_NORESERVE = 0, 0x2 | 0x20 | 0x10 | 0x4000


# The driver's checkpoint gives up a process's own descriptors and mappings of the
# devices, not the copies in its forked children, which CRIU cannot save. They have no
# use for them (``survey``): every descriptor is replaced by one of /dev/null and every
# mapping by an inaccessible one, so that neither the numbers nor the addresses are
# reused. That is not undone when the capture fails: there is nothing to give back.
def give_up(process: Process) -> None:
    """Make a stale child give up every GPU device. Idempotent.

    Must be called for children only that ``survey`` calls stale.

    Raises:
        ReclaimError: it could not be made to (``gpu_stale_child``); it runs as before.
    """
    with processes.held(process) as pidfd:
        if pidfd is None:
            return
        try:
            with (
                continuing.stopped(process, ptrace.SECONDS),
                ptrace.stopped(process.pid) as traced,
            ):
                # Looked at now that nothing of it moves.
                _replace_devices(traced, held_by(process.pid))
        except OSError as error:
            if processes.start_time(process.pid) != process.start_time:
                return  # it has ended: all the better
            facts = {**process.facts, "detail": str(error)}
            raise ReclaimError(Reason.GPU_STALE_CHILD, **facts) from error
    if held_by(process.pid):
        facts = {**process.facts, "detail": f"still holds {DEVICES}*"}
        raise ReclaimError(Reason.GPU_STALE_CHILD, **facts)


def _replace_devices(traced: ptrace.Traced, held: HeldDevices) -> None:
    if held.descriptors:
        with traced.text("/dev/null") as path:
            null = traced.call("openat", AT_FDCWD, path, _READ_WRITE | _CLOEXEC)
        for descriptor in held.descriptors:
            traced.call("dup3", null, descriptor.fd, _CLOEXEC)
        traced.call("close", null)
    for mapping in held.mappings:
        traced.call(
            "mmap",
            mapping.start,
            mapping.end - mapping.start,
            _NO_ACCESS,
            _PRIVATE_ANONYMOUS_FIXED_NORESERVE,
            -1,
            0,
        )

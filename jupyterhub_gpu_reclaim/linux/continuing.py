"""Stops processes, and continues them without a signal that they would hear.

Only SIGCONT continues what a signal has stopped. A program that handles it would run
its handler at each save: mpirun reports it, editors redraw their screen. So the signal
is removed again from a program that handles or blocks it, before any of its threads
runs.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.linux import processes, procfs, ptrace
from jupyterhub_gpu_reclaim.linux.kept_registers import Kept

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from jupyterhub_gpu_reclaim.linux.processes import Process

_SIGCONT: Final = 1 << (signal.SIGCONT - 1)


def go_on(process: Process) -> None:
    """Continue one process; nothing if it has ended or runs."""
    if _hears(process):
        # Where it is held by somebody else, it hears of it.
        with contextlib.suppress(OSError), processes.held(process) as pidfd:
            if pidfd is not None:
                ptrace.go_on(process.pid, pidfd)
                return
    processes.send(process, signal.SIGCONT)


@contextlib.contextmanager
def stopped(process: Process, seconds: float) -> Iterator[None]:
    """Have a signal stop a process inside the block; unless one had already.

    It is continued afterwards, also if the agent is killed inside
    (``ptrace.give_back``). One that has not stopped after so many seconds is left at
    that.

    Raises:
        OSError: it cannot be noted before; nothing is done.
    """
    if processes.is_stopped(process):
        yield
        return
    runs = Kept(process.pid)
    ptrace.kept.keep(runs)
    try:
        processes.stop(process, seconds)
        yield
    finally:
        go_on(process)
        ptrace.kept.drop(runs)


def resume(some: Iterable[Process], keep_stopped: Collection[int] = ()) -> None:
    """Continue stopped processes, those before their parents that come first.

    A shell that went on before its foreground program would find that stopped, and take
    the terminal away from it. What the user had stopped (pids in the session) stays so.
    """
    for process in reversed(list(some)):
        if process.ns_pid not in keep_stopped:
            go_on(process)


def _hears(process: Process) -> bool:
    if not processes.is_stopped(process):
        return False
    status = procfs.status(process.pid)
    told = int(status.get("SigCgt", "0"), 16) | int(status.get("SigBlk", "0"), 16)
    return bool(told & _SIGCONT)

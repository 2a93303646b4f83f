"""Signals that wait to end a stopped program."""

from __future__ import annotations

import signal
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.linux import processes

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return

#: Their default ends no program: signal(7).
_HARMLESS: Final = frozenset(
    {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    | {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)
#: CRIU saves what is done about each signal but these, in the order of the others.
_NO_ACTION: Final = (signal.SIGKILL, signal.SIGSTOP)


class EndingSignals(Kind):
    """Signals that wait to end a stopped program.

    They are kept from CRIU and sent to the tree that came back. A program that is
    stopped (Ctrl-Z) takes no signal: the SIGHUP of its terminal's end or the SIGTERM of
    a ``kill`` waits until it goes on. CRIU (4.2) sends waiting signals again before it
    stops the program, and the kernel takes them by number: those below SIGSTOP first.
    Only those are kept that the kernel alone looks at: not handled, not ignored, not
    blocked, their default an end.
    """

    def __init__(self) -> None:
        self._ending: dict[int, set[int]] = {}  #: by pid in the session

    def rewrite(self, back: Return) -> None:
        for task, cores in back.images.cores():
            if cores and (taken := _take_out(cores)):
                self._ending[task.pid] = taken

    def after_restore(self, back: Return) -> None:
        # The tree stands, so none is taken yet.
        for process in back.tree.processes:
            for number in sorted(self._ending.get(process.ns_pid, ())):
                processes.send(process, number)


def _take_out(cores: list[Any]) -> set[int]:
    default = _default(cores[0].tc.sigactions)
    blocked = [core.thread_core.blk_sigset for core in cores]
    blocked[0] |= cores[0].tc.blk_sigset
    every = reduce(int.__and__, blocked)
    taken = _cut(cores[0].tc.signals_s.signals, default, every)
    for core, mask in zip(cores, blocked, strict=True):
        taken |= _cut(core.thread_core.signals_p.signals, default, mask)
    return taken


def _default(actions: Any) -> set[int]:
    numbers = (n for n in range(1, signal.NSIG) if n not in _NO_ACTION)
    return {
        number
        for number, action in zip(numbers, actions, strict=False)
        if action.sigaction == signal.SIG_DFL and number not in _HARMLESS
    }


def _cut(queue: Any, default: set[int], blocked: int) -> set[int]:
    numbers = [int.from_bytes(one.siginfo[:4], "little") for one in queue]
    ends = {n for n in numbers if n in default and not blocked >> (n - 1) & 1}
    kept = [one for n, one in zip(numbers, queue, strict=True) if n not in ends]
    if ends:
        del queue[:]
        queue.extend(kept)
    return ends

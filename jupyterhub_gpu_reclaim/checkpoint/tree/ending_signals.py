"""Keeps signals that wait to end a stopped program from ending it on the way back.

A program that is stopped (Ctrl-Z) takes no signal: the SIGHUP of its terminal's end or
the SIGTERM of a ``kill`` waits until it goes on. CRIU (4.2) sends waiting signals
anew before it stops the program, and the kernel takes them by their number: those
below SIGSTOP first. So they are left out of what CRIU is given, and sent to the tree
that has come back, stopped. It is only those that nothing but the kernel looks at: not
handled, not ignored, not blocked, their default an end.
"""

from __future__ import annotations

import signal
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.linux import processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.linux.processes import Snapshot

#: Ends nobody, whatever waits: signal(7).
_HARMLESS: Final = frozenset(
    {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    | {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)
#: CRIU saves what is done about each signal but these, in the order of the others.
_NO_ACTION: Final = (signal.SIGKILL, signal.SIGSTOP)

#: Pid in the session → signals that end it when it goes on.
Ending = dict[int, set[int]]


def take_out(read: Callable[[str], bytes | None]) -> tuple[dict[str, bytes], Ending]:
    """The images that are different now, and what is missing in them.

    Raises:
        RestoreFailed: an image is damaged.
    """
    changed: dict[str, bytes] = {}
    found: Ending = {}
    for payload in images.split(read("pstree.img") or b"", images.PSTREE_MAGIC):
        entry = images.parse("pstree_entry", payload)
        cores: dict[str, Any] = {}
        for number in entry.threads or [entry.pid]:
            if (image := read(name := f"core-{number}.img")) is not None:
                only = images.only(image, images.CORE_MAGIC)
                cores[name] = images.parse("core_entry", only)
        if taken := _take_out(list(cores.values())):
            found[entry.pid] = taken
            for name, core in cores.items():
                data = images.serialize(core)
                changed[name] = images.join(images.CORE_MAGIC, [data])
    return changed, found


def give_back(tree: Snapshot, ending: Ending) -> None:
    """Send them; the tree stands, so none is taken."""
    for process in tree.processes:
        for number in sorted(ending.get(process.ns_pid, ())):
            processes.send(process, number)


def _take_out(cores: list[Any]) -> set[int]:
    """What ends a process with these threads, the first one before the others."""
    if not cores:
        return set()
    default = _default(cores[0].tc.sigactions)
    blocked = [core.thread_core.blk_sigset for core in cores]
    blocked[0] |= cores[0].tc.blk_sigset
    every = reduce(int.__and__, blocked)
    taken = _cut(cores[0].tc.signals_s.signals, default, every)
    for core, mask in zip(cores, blocked, strict=True):
        taken |= _cut(core.thread_core.signals_p.signals, default, mask)
    return taken


def _default(actions: Any) -> set[int]:
    """Signals that nothing is done about but what the kernel does by itself."""
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

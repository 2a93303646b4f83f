"""Calls in which the threads of a stopped tree wait."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.linux import procfs, ptrace
from jupyterhub_gpu_reclaim.linux.processes import named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump

# Numbers of x86-64.
_POLL, _NANOSLEEP, _FUTEX, _CLOCK_NANOSLEEP = 7, 35, 202, 230
_EPOLL_WAIT, _EPOLL_PWAIT = 232, 281
_SEMOP, _SEMTIMEDOP = 65, 220
#: Seconds that a wait may have been told, to be begun again as a whole.
SHORT: Final = 10.0
_FUTEX_WAIT, _FUTEX_WAIT_BITSET = 0, 9
_FUTEX_OPERATION: Final = 0x7F
_TIMER_ABSTIME: Final = 1
_TIME: Final = struct.Struct("<qq")


class InterruptedWaits(Kind):
    """Waits that would end early, without a signal that their program could expect.

    Where a signal has stopped a thread that waits, the kernel takes the call up again.
    How long it still has to wait the kernel keeps to itself (ERESTART_RESTARTBLOCK),
    and forgets once CRIU has run its own code in the thread: the call fails with EINTR
    then, after a save as after a return. So such a call is marked as one that the
    kernel begins again by its arguments (ERESTARTNOHAND); a signal with a handler still
    ends it.

    That is right for calls that are the same from their beginning, and for short waits
    (:func:`begins_alike`). Others with a length end with EINTR: a program that waits so
    again and again would else never get to what is due. Only the loop of the server
    begins any wait again, so that after a return it hears what has come in before it
    looks at the clock (``node.jupyter.wake_up``). A call that was taken up before, as
    after a nap, has no number of its own any more (restart_syscall), and ends so.
    """

    def before_dump(self, dump: Dump) -> None:
        server = dump.tree.server
        for one in dump.programs:
            loop = one.pid if one.process == server else 0
            waits = {
                tid: number
                for tid in one.threads
                if (number := _interrupted(tid, is_loop=tid == loop)) is not None
            }
            if waits:
                with named(one.process, "does not stand still"):
                    ptrace.begin_again(one.pid, waits)


def _interrupted(tid: int, *, is_loop: bool) -> int | None:
    """The call that a stopped thread waits in, if it is to begin again."""
    words = procfs.text(tid, "syscall").split()
    if len(words) != 9:
        return None  # it runs code of its own
    number = int(words[0])
    arguments = [int(word, 16) for word in words[1:7]]
    if is_loop and number in {_EPOLL_WAIT, _EPOLL_PWAIT}:
        return number
    alike = begins_alike(number, arguments, lambda at: _seconds_at(tid, at))
    return number if alike else None


def begins_alike(
    number: int, arguments: Sequence[int], seconds: Callable[[int], float]
) -> bool:
    """Whether a wait is the same from its beginning as from where it was, or short.

    Or one for a semaphore, which the kernel takes up in no case (signal(7)).
    """
    if number == _POLL:
        return _is_short(arguments[2])
    if number in {_EPOLL_WAIT, _EPOLL_PWAIT}:
        return _is_short(arguments[3])
    if number == _FUTEX and arguments[3] != 0:
        operation = arguments[1] & _FUTEX_OPERATION
        short = operation == _FUTEX_WAIT and seconds(arguments[3]) <= SHORT
        return short or operation == _FUTEX_WAIT_BITSET
    if number == _NANOSLEEP:
        return arguments[1] in {0, arguments[0]}
    if number == _CLOCK_NANOSLEEP:
        is_relative = not arguments[1] & _TIMER_ABSTIME
        return is_relative and arguments[3] in {0, arguments[2]}
    return number in {_SEMOP, _SEMTIMEDOP}


def _is_short(argument: int) -> bool:
    """Whether so many milliseconds, an int, are few, or (negative) without an end."""
    return bool(argument & 1 << 31) or argument & 0x7FFFFFFF <= SHORT * 1000


def _seconds_at(tid: int, address: int) -> float:
    try:
        seconds, nanoseconds = _TIME.unpack(procfs.memory(tid, address, _TIME.size))
    except (OSError, struct.error):
        return math.inf
    return float(seconds + nanoseconds / 1e9)

"""Waits until something wakes the stopped programs of one session.

The kernel reports input as it comes (``descriptors.watch_edges``): the agent holds no
connection of the session, and does not poll. A session that is flooded is looked at
more and more seldom, at last five times a second.

Nothing reports a signal for a stopped program. So pending ones are looked at ten times
a second, and so is whether each program is still stopped: one that was continued runs
without its GPU memory, and must have it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import signal
import time
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.linux import processes, procfs
from jupyterhub_gpu_reclaim.linux.descriptors import watch_edges
from jupyterhub_gpu_reclaim.node.nap import messages
from jupyterhub_gpu_reclaim.node.nap.inputs import (
    PEEK_BYTES,
    Input,
    InputKind,
    find_inputs,
    peek,
    unread,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.linux.processes import Process

_log = logging.getLogger(__name__)

#: Seconds between two looks at signals.
_TICK: Final = 0.1
_PROGRAMS_A_TICK: Final = 10
#: Seconds until the next look after input that woke nobody.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.2
#: Looked at in one go, and seconds for that; they take microseconds.
_AT_ONCE: Final = 16
_JUDGE_SECONDS: Final = 5.0
#: Timers, the size of a window, urgent data: no person's, or they ask for no answer. A
#: child that ends, or was stopped by this very nap. And what stops a program: it is
#: stopped, and the kernel drops them when it goes on.
_QUIET_SIGNALS: Final = sum(
    1 << (number - 1)
    for number in (
        signal.SIGALRM,
        signal.SIGVTALRM,
        signal.SIGPROF,
        signal.SIGCHLD,
        signal.SIGWINCH,
        signal.SIGURG,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
    )
)


class Watch:
    def __init__(
        self, programs: Iterable[Process], standing: Mapping[str, int]
    ) -> None:
        self._programs = list(programs)
        self._standing = standing
        self._inputs: list[Input] = []
        self._epoll = select.epoll()
        self._read: dict[Input, int] = {}
        #: Pending when it began, and blocked: its program has not wanted it so far.
        self._blocked = {
            p: processes.pending_signals(p.pid)
            & int(procfs.status(p.pid).get("SigBlk", "0"), 16)
            for p in self._programs
        }

    def open(self, init_pid: int) -> None:
        """Begin to watch; blocks.

        Raises:
            TooManyError: there is more to be watched than we do.
            OSError: the agent has no more descriptors.
        """
        self._inputs = find_inputs(init_pid, self._programs)
        for number, one in enumerate(self._inputs):
            with one.opened() as copy:
                if copy is not None:
                    watch_edges(self._epoll, copy, number)

    def close(self) -> None:
        self._epoll.close()

    async def wait(self) -> str:
        """Wait for something that wakes it, and return it in a few words for the log.

        Raises:
            TimeoutError: an input keeps us waiting.
        """
        pause, next_look = _FIRST_PAUSE, 0.0
        # A session may have thousands of programs; the agent has others to look after.
        tick = _TICK * max(1.0, len(self._programs) / _PROGRAMS_A_TICK)
        while True:
            if (now := time.monotonic()) >= next_look:
                next_look = now + tick
                if found := self._look_at_programs():
                    return found
            if not await self._told(next_look - now):
                pause = _FIRST_PAUSE
                continue
            some = [self._inputs[number] for number, _ in self._epoll.poll(0, _AT_ONCE)]
            async with asyncio.timeout(_JUDGE_SECONDS):
                if found := await asyncio.to_thread(
                    lambda some: next(filter(None, map(self._judge, some)), ""), some
                ):
                    return found
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _told(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        descriptor = self._epoll.fileno()
        loop.add_reader(descriptor, came.set)
        try:
            async with asyncio.timeout(seconds):
                await came.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(descriptor)
        return True

    def _look_at_programs(self) -> str:
        for process in self._programs:
            if not processes.is_stopped(process):
                if processes.start_time(process.pid) != process.start_time:
                    return "the end of a program"
                return "a program that was continued"
            pending = processes.pending_signals(process.pid)
            self._blocked[process] &= pending
            if waking := pending & ~self._blocked[process] & ~_QUIET_SIGNALS:
                number = (waking & -waking).bit_length()
                name = f"signal {number}"
                with contextlib.suppress(ValueError):
                    name = signal.Signals(number).name
                return name
        return ""

    def _judge(self, one: Input) -> str:
        with one.opened() as copy:
            if copy is None:
                return "a descriptor that was changed"
            if one.kind is InputKind.CHANNEL:
                return self._read_channel(one, copy)
            count = unread(one, copy)
        left = self._standing.get(one.name)
        if not count or count == left:
            return ""
        # Logged, since it tells a person's act from a program's own.
        _log.info("- %s (%s): %s unread, %s left", one.name, one.target, count, left)
        return one.kind

    def _read_channel(self, one: Input, copy: int) -> str:
        data = peek(copy)
        offset = self._read.get(one, 0)
        found = messages.read(data, offset if offset <= len(data) else 0)
        self._read[one] = found.offset
        if not found.kind and len(data) == PEEK_BYTES:
            return "more messages than are looked at"
        return found.kind

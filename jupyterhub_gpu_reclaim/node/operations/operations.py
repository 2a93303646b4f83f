"""Runs one operation per session at a time; any number of callers follow its progress.

An operation runs to its end whether or not anything listens: a stream that breaks
changes nothing, and the next call of the same kind attaches to it. The work is passed
in by the caller (``workflows``). Each step has a time limit, and its blocking work runs
in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.agent_orders import CANCELLABLE
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, RolledBack
from jupyterhub_gpu_reclaim.common.models import Event, SessionKey, Step
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import far_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.node.session import Session

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How many seconds each step may take."""

    check: float = 60.0  #: looking at processes, files and sockets
    rehearsal: float = 300.0  #: trying a return, also on a busy machine
    dump: float = 1800.0
    archive: float = 600.0
    commit: float = 600.0
    restore: float = 1800.0
    answer: float = 60.0  #: until a restored server answers
    end: float = 30.0  #: until killed processes are gone
    criu: float = 60.0  #: until a CRIU of an agent that died has undone its work
    gpu_lock: float = 30.0  #: until a GPU has done what it has in hand
    room: float = 60.0  #: until others have left the memory of a GPU

    @property
    def emptying(self) -> float:
        return self.gpu_lock + self.dump + self.check

    @property
    def filling(self) -> float:
        return self.restore + self.check


#: With so many threads that go on though their time was up, nothing that looks at its
#: programs and files is begun for a session.
MOST_LATE: Final = 4


class Operation:
    def __init__(self, kind: str, key: SessionKey, checkpoint: str) -> None:
        self.kind = kind
        self.key = key
        self.checkpoint = checkpoint
        #: until its end; whoever still works then, in a thread, keeps it
        self.cancel = Cancel()
        self.events: list[Event] = []
        self.done = False
        self.error: ReclaimError | None = None
        self._news = asyncio.Event()

    @property
    def steps(self) -> list[Step]:
        newest: dict[str, Step] = {}
        for event in self.events:
            if event.step is not None:
                newest[event.step.step] = event.step
        return list(newest.values())

    def add(self, event: Event) -> None:
        last = self.events[-1].step if self.events else None
        if (
            event.step is not None
            and last is not None
            and last.step == event.step.step
            and last.state == event.step.state == "going"
        ):
            self.events[-1] = event  # late followers need only the newest figure
        else:
            self.events.append(event)
        self._wake()

    def fail(self, error: ReclaimError) -> None:
        self.error = error
        self.add(Event(failure=codec.failure_of(error)))

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for its end, at most so long; None trusts its own time limits."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async for _ in self.follow():
                    pass

    def end(self) -> None:
        self.done = True
        del self.cancel  # and its descriptor: an ended operation is kept for long
        self._wake()

    async def follow(self) -> AsyncIterator[Event]:
        """Yield all events from the first to the last. Ending it early is harmless."""
        position, last = 0, None
        while True:
            news = self._news
            if position and self.events[position - 1] is not last:
                position -= 1  # a newer figure is in its place
            if position < len(self.events):
                last = self.events[position]
                position += 1
                yield last
            elif self.done:
                return
            elif not news.is_set():
                await news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


#: Kinds whose end is told again to who asks for the same.
_REPEATED: Final = frozenset({orders.Capture.kind, orders.Save.kind})
#: Operations that have ended and are remembered.
KEPT: Final = 256


class Operations:
    """Current operations by incarnation; ended ones stay, to repeat their result."""

    def __init__(self) -> None:
        self._current: dict[str, Operation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watching: Callable[[str], None] = lambda _: None
        self._begun = asyncio.Event()
        self._late: Counter[str] = Counter()

    def work_for(self, session: Session) -> None:
        """Say for which session this task, and what it begins, is at work.

        Raises:
            Refused: too many threads still wait for it (``operation_in_flight``).
        """
        # A user's files may keep a thread for ever, of the hundreds that all share.
        key = str(session.key)
        if self._late[key] >= MOST_LATE:
            what = "earlier ones wait for its programs or files"
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=what)
        _late.set((self._late, key))
        _init.set((session.init_pid, session.init_start))

    def watch(self, changed: Callable[[str], None]) -> None:
        """Call it with an incarnation whenever an operation on it begins or ends."""
        self._watching = changed

    def running(self, incarnation: str) -> Operation | None:
        operation = self._current.get(incarnation)
        return operation if operation is not None and not operation.done else None

    def restoring(self, checkpoint: str) -> bool:
        running = (one for one in self._current.values() if not one.done)
        wanted = (orders.Restore.kind, checkpoint)
        return any((one.kind, one.checkpoint) == wanted for one in running)

    def last(self, incarnation: str) -> Operation | None:
        return self._current.get(incarnation)

    def attach(self, incarnation: str, kind: str, checkpoint: str) -> Operation | None:
        """The same operation, under way or ended; None if it must be begun.

        How a save ended is repeated. Anything else is done again: what hindered it may
        be mended.

        Raises:
            Refused: another operation is under way (``operation_in_flight``).
        """
        operation = self._current.get(incarnation)
        if operation is None:
            return None
        if (operation.kind, operation.checkpoint) == (kind, checkpoint):
            repeats = not operation.done or kind in _REPEATED
            return operation if repeats else None
        if not operation.done:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=operation.kind)
        return None

    def begin(
        self,
        incarnation: str,
        operation: Operation,
        work: Callable[[Operation], Awaitable[None]],
    ) -> Operation:
        """Start it in a task of its own; the caller has asked :meth:`attach` before."""
        ended = [name for name, one in self._current.items() if one.done]
        for name in ended[: max(0, len(ended) - KEPT)]:
            del self._current[name]
        self._current.pop(incarnation, None)
        self._current[incarnation] = operation
        task = asyncio.create_task(
            _run(operation, work), name=f"{operation.kind} {incarnation}"
        )
        self._tasks[incarnation] = task

        def forget(_: asyncio.Task[None]) -> None:
            self._tasks.pop(incarnation, None)
            self._watching(incarnation)

        task.add_done_callback(forget)
        self._watching(incarnation)
        self._begun.set()
        self._begun = asyncio.Event()
        return operation

    async def next(
        self, incarnation: str, kind: str, seconds: float
    ) -> Operation | None:
        """The operation of that kind under way, or that begins within so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    running = self.running(incarnation)
                    if running is not None and running.kind == kind:
                        return running
                    await self._begun.wait()
        return None

    async def finish(self, seconds: float) -> list[str]:
        """Cancel what can be; wait; the incarnations that have not ended."""
        for incarnation in self._tasks:
            operation = self._current[incarnation]
            if operation.kind in CANCELLABLE and not operation.done:
                operation.cancel.set()
        tasks = dict(self._tasks)
        if tasks:
            await asyncio.wait(tasks.values(), timeout=seconds)
        return [name for name, task in tasks.items() if not task.done()]


async def _run(
    operation: Operation, work: Callable[[Operation], Awaitable[None]]
) -> None:
    try:
        await work(operation)
    except ReclaimError as error:
        _log.warning(
            "%s %s of %s failed: %s",
            operation.key,
            operation.kind,
            operation.checkpoint,
            error,
        )
        operation.fail(error)
    except Exception:  # noqa: BLE001 the border: a sentence outside, the rest here
        _log.exception("%s %s failed: internal", operation.key, operation.kind)
        operation.fail(ReclaimError(Reason.INTERNAL))
    finally:
        operation.end()


T = TypeVar("T")

#: How often a step tells how far it is.
TICK_SECONDS = 0.5


def reported(
    error: Exception, kind: type[ReclaimError], reason: Reason
) -> ReclaimError:
    """Any error of an operation as one of ours; an unexpected one is logged."""
    if isinstance(error, ReclaimError):
        return error
    _log.error("- unexpected error in an operation", exc_info=error)
    why = f"{type(error).__name__} inside the agent"
    return kind(reason, why=why, detail=str(error))


#: For which session a task, and what it begins, is at work, and where its threads are
#: counted that go on though nobody waits for them any more.
_late: ContextVar[tuple[Counter[str], str]] = ContextVar("late")
_init: ContextVar[tuple[int, int]] = ContextVar("init", default=(0, 0))


async def in_thread(
    work: Callable[[], T], *, step: str, limit: float, cancel: Cancel | None = None
) -> T:
    """Run what blocks in a thread, and wait for it for so long.

    The thread itself cannot be ended: its work has to have limits of its own, a little
    shorter; this is the last line of defence. ``cancel`` ends the waiting, too: for
    work that may be left behind at any moment, such as what waits for a store that
    hangs.

    Raises:
        RolledBack: ``timed_out``, ``cancelled``, or ``files_silent`` where the thread
            waits for a file of the session; and whatever the work raises.
    """
    threads: list[far_files.Task] = []

    def noted() -> T:
        threads.append((os.getpid(), threading.get_native_id()))
        return work()

    task = asyncio.create_task(asyncio.to_thread(noted))
    silent = asyncio.create_task(_silent(threads))
    either: set[asyncio.Future[Any]] = {task, silent}
    if cancel is not None:
        either.add(asyncio.wrap_future(cancel.told))
    await asyncio.wait(either, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    silent.cancel()
    if not task.done():
        counts, session = _late.get((Counter(), ""))
        counts[session] += 1
        task.add_done_callback(partial(_end_late, counts, session))
        if cancel is not None:
            cancel.check()
        if silent.done():
            raise RolledBack(Reason.FILES_SILENT, **silent.result())
        raise RolledBack(Reason.TIMED_OUT, step=step, seconds=limit)
    return task.result()


async def _silent(threads: list[far_files.Task]) -> dict[str, Any]:
    """Return what there is to say once they wait in vain for a file of the session."""
    waits = far_files.FarWaits(*_init.get())
    while True:
        await asyncio.sleep(far_files.LOOK_SECONDS)
        # What waits may be the store's; a session without such files waits for it.
        if waits.exist and (facts := await asyncio.to_thread(waits.silent, threads)):
            return facts


def _end_late(counts: Counter[str], session: str, task: asyncio.Task[object]) -> None:
    counts[session] -= 1
    if not counts[session]:
        del counts[session]
    error = None if task.cancelled() else task.exception()
    _log.warning("- a step ended after its time limit: %s", error or "success")


@contextlib.asynccontextmanager
async def reported_step(
    operation: Operation,
    clock: Clock,
    name: str,
    title: str,
    *,
    done: Callable[[], int] = int,
    total: Callable[[], int] = int,
) -> AsyncIterator[None]:
    """Report a step; ``done`` and ``total`` (0: unknown) are bytes."""
    # They are asked twice a second, from this thread.
    begun = clock.monotonic()

    def report(state: str) -> None:
        step = Step(
            step=name,
            title=title,
            state=state,
            seconds=round(clock.monotonic() - begun, 3),
            bytes=done(),
            total_bytes=total(),
        )
        operation.add(Event(step=step))

    async def tick() -> None:
        while True:
            await clock.sleep(TICK_SECONDS)
            report("going")

    report("begun")
    ticker = asyncio.create_task(tick())
    try:
        yield
    except BaseException as error:
        report("failed")
        why = error.reason.value if isinstance(error, ReclaimError) else "internal"
        _log.info("%s step %s failed: %s", operation.key, name, why)
        raise
    else:
        report("done")
    finally:
        ticker.cancel()

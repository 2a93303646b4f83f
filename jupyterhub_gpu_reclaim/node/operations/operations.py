"""Runs one operation per session at a time; any number of callers follow its progress.

An operation runs to its end whether or not anything listens: a stream that breaks
changes nothing, and the next call of the same kind attaches to it. The operations are
async generators of steps, passed in by the caller; see ``workflows``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint import cancel
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, RolledBack
from jupyterhub_gpu_reclaim.common.models import Event, SessionKey, Step
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_log = logging.getLogger(__name__)


class Cancel(cancel.Cancel):
    """A request to stop, seen by threads, tasks and the running dump or restore."""

    def check(self) -> None:
        """Go on, or end here.

        Raises:
            RolledBack: it was cancelled (``cancelled``); the caller undoes its work.
        """
        if self.is_set:
            raise RolledBack(Reason.CANCELLED)


class Operation:
    """One operation on one session: its events so far, and how to await the next."""

    def __init__(self, kind: str, key: SessionKey, checkpoint: str) -> None:
        self.kind = kind
        self.key = key
        self.checkpoint = checkpoint
        self.cancel = Cancel()
        self.events: list[Event] = []
        self.done = False
        self.error: ReclaimError | None = None
        self._news = asyncio.Event()

    @property
    def steps(self) -> list[Step]:
        """The newest state of each step, in the order in which they began."""
        newest: dict[str, Step] = {}
        for event in self.events:
            if event.step is not None:
                newest[event.step.step] = event.step
        return list(newest.values())

    def add(self, event: Event) -> None:
        """Tell the followers."""
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
        """Add its last event: why it failed."""
        self.error = error
        self.add(Event(failure=codec.failure_of(error)))

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for its end, at most so long; None trusts its own time limits."""
        try:
            async with asyncio.timeout(seconds):
                async for _ in self.follow():
                    pass
        except TimeoutError:
            return

    def end(self) -> None:
        """Mark that no event will come any more."""
        self.done = True
        self._wake()

    async def follow(self) -> AsyncIterator[Event]:
        """All events from the first on, until the end. Ending it early is harmless."""
        seen: list[Event] = []
        while True:
            news = self._news
            for event in self._unseen(seen):
                yield event
            if self.done and self._seen_all(seen):
                return
            if not news.is_set():
                await news.wait()

    def _unseen(self, seen: list[Event]) -> list[Event]:
        fresh = [
            event
            for position, event in enumerate(self.events)
            if position >= len(seen) or seen[position] is not event
        ]
        seen[:] = self.events
        return fresh

    def _seen_all(self, seen: list[Event]) -> bool:
        return len(seen) == len(self.events) and (
            not seen or seen[-1] is self.events[-1]
        )

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Operations:
    """Current operations by incarnation; ended ones stay, to repeat their result."""

    def __init__(self, *, kept: int = 256) -> None:
        self._current: dict[str, Operation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._kept = kept

    def running(self, incarnation: str) -> Operation | None:
        """The operation that is under way on that session."""
        operation = self._current.get(incarnation)
        return operation if operation is not None and not operation.done else None

    def restoring(self, checkpoint: str) -> bool:
        """Whether a session is being restored from that checkpoint."""
        return any(
            not operation.done
            and (operation.kind, operation.checkpoint) == ("restore", checkpoint)
            for operation in self._current.values()
        )

    def last(self, incarnation: str) -> Operation | None:
        """The current operation, or the last one that ended."""
        return self._current.get(incarnation)

    def attach(self, incarnation: str, kind: str, checkpoint: str) -> Operation | None:
        """The same operation, under way or ended; None if it must be begun.

        A restore that failed is begun again by the same call.

        Raises:
            Refused: another operation is under way (``operation_in_flight``).
        """
        operation = self._current.get(incarnation)
        if operation is None:
            return None
        if (operation.kind, operation.checkpoint) == (kind, checkpoint):
            return None if _may_go_better(operation) else operation
        if not operation.done:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=operation.kind)
        return None

    def begin(
        self,
        incarnation: str,
        operation: Operation,
        work: Callable[[Operation], AsyncIterator[Event]],
    ) -> Operation:
        """Start it in a task of its own; the caller has asked :meth:`attach` before."""
        self._forget_oldest()
        self._current.pop(incarnation, None)
        self._current[incarnation] = operation
        task = asyncio.create_task(
            _run(operation, work), name=f"{operation.kind} {incarnation}"
        )
        self._tasks[incarnation] = task
        task.add_done_callback(lambda _: self._tasks.pop(incarnation, None))
        return operation

    def forget(self, incarnation: str) -> None:
        """Drop an operation that has ended, so that the same call begins a new one."""
        if self.running(incarnation) is None:
            self._current.pop(incarnation, None)

    async def finish(self, seconds: float) -> list[str]:
        """Cancel all captures and wait; the incarnations that have not ended."""
        for incarnation in self._tasks:
            operation = self._current[incarnation]
            if operation.kind == "capture":
                operation.cancel.set()
        tasks = dict(self._tasks)
        if tasks:
            await asyncio.wait(tasks.values(), timeout=seconds)
        return [name for name, task in tasks.items() if not task.done()]

    def _forget_oldest(self) -> None:
        ended = [name for name, operation in self._current.items() if operation.done]
        for name in ended[: max(0, len(ended) - self._kept)]:
            del self._current[name]


def _may_go_better(operation: Operation) -> bool:
    """Whether the same call tries again: a restore that failed has left nothing.

    What hindered it may have been mended: memory came free, a file was put back.
    """
    return (
        operation.kind == "restore" and operation.done and operation.error is not None
    )


async def _run(
    operation: Operation, work: Callable[[Operation], AsyncIterator[Event]]
) -> None:
    """Run to the end; whatever goes wrong becomes the last event."""
    try:
        async for event in work(operation):
            operation.add(event)
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

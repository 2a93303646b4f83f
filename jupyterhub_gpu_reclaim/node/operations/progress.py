"""Steps of an operation: begun, how far, done or failed, each with its time limit.

It runs blocking work in threads and informs the operation's followers. It knows nothing
of what the steps do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RolledBack, StoreError
from jupyterhub_gpu_reclaim.common.models import Event, Step
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations.records import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.node.operations.operations import Operation
    from jupyterhub_gpu_reclaim.node.operations.records import Record, Records

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Stages after which the way goes on even if the record of it cannot be written: the
#: tree must not stay stopped because the agent's own disk is full.
_UNDOING = {Stage.ROLLING_BACK, Stage.FAILED, Stage.RESTORED}

#: How often a step tells how far it is.
TICK_SECONDS = 0.5


async def durably(
    steps: AsyncGenerator[Record | Event, None], records: Records
) -> AsyncIterator[Event]:
    """Run an operation, each record saved before its next step is taken.

    A record that cannot be saved is an error *inside* the operation, so that it undoes
    what it has begun.
    """
    failure: ReclaimError | None = None
    while True:
        try:
            news = await (steps.athrow(failure) if failure else anext(steps))
        except StopAsyncIteration:
            return
        failure = None
        if isinstance(news, Event):
            yield news
            continue
        try:
            await asyncio.to_thread(records.save, news)
        except OSError as error:
            _log.error("%s record not written: %s", news.key, error)
            if news.stage not in _UNDOING:
                failure = StoreError(Reason.STATE_FULL, detail=str(error))


async def in_thread(work: Callable[[], T], *, step: str, limit: float) -> T:
    """Run what blocks in a thread, and wait for it for so long.

    The thread itself cannot be ended: its work has to have limits of its own, a
    little shorter; this is the last line of defence.

    Raises:
        RolledBack: ``timed_out``; and whatever the work raises.
    """
    task = asyncio.create_task(asyncio.to_thread(work))
    done, _ = await asyncio.wait({task}, timeout=limit)
    if not done:
        task.add_done_callback(_log_late)
        raise RolledBack(Reason.TIMED_OUT, step=step, seconds=limit)
    return task.result()


def _log_late(task: asyncio.Task[object]) -> None:
    """Log how work ended that is no longer awaited."""
    error = None if task.cancelled() else task.exception()
    _log.warning("- a step that had timed out has ended: %s", error or "well")


class Progress:
    """Tells an operation's followers about its steps."""

    def __init__(self, operation: Operation, clock: Clock) -> None:
        self._operation = operation
        self._clock = clock

    @contextlib.asynccontextmanager
    async def step(
        self,
        name: str,
        title: str,
        *,
        done: Callable[[], int] = int,
        total: Callable[[], int] = int,
    ) -> AsyncIterator[None]:
        """One step, from ``begun`` to ``done`` or ``failed``.

        Args:
            name: its stable name.
            title: what a user reads.
            done: bytes so far; asked twice a second, from this thread.
            total: bytes in all, 0 while that is not known.
        """
        begun = self._clock.monotonic()

        def tell(state: str) -> None:
            seconds = self._clock.monotonic() - begun
            self._operation.add(
                Event(
                    step=Step(
                        step=name,
                        title=title,
                        state=state,
                        seconds=round(seconds, 3),
                        bytes=done(),
                        total_bytes=total(),
                    )
                )
            )

        tell("begun")
        ticker = asyncio.create_task(self._tick(lambda: tell("going")))
        try:
            yield
        except BaseException as error:
            tell("failed")
            why = error.reason.value if isinstance(error, ReclaimError) else "internal"
            _log.info("%s step %s failed: %s", self._operation.key, name, why)
            raise
        else:
            tell("done")
        finally:
            ticker.cancel()

    async def _tick(self, tell: Callable[[], None]) -> None:
        while True:
            await self._clock.sleep(TICK_SECONDS)
            tell()

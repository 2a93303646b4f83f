"""Watches over all sessions of the node that nap, and orders their wake.

A session is watched while it naps and no operation works on it. So input that comes
during a capture is found when that is undone, and input that comes while no agent runs
is found when one starts. A nap that was left half done by a former agent or a failed
wake is ended, again and again, each time a little later; at once if only memory of the
card was lacking, as a person waits. Nothing here touches a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.nap.watch import Watch
from jupyterhub_gpu_reclaim.node.operations.records import NapStage
from jupyterhub_gpu_reclaim.node.sessions import trees

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jupyterhub_gpu_reclaim.node.operations.operations import Operations
    from jupyterhub_gpu_reclaim.node.operations.records import NapRecord, Records
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.node.sessions.placements import Placements

_log = logging.getLogger(__name__)

#: Seconds until a wake that has failed is tried again; doubled each time.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
#: Seconds until what is to be watched must be found; it takes milliseconds.
_OPEN_SECONDS: Final = 30.0
#: A nap that is to end, whoever has begun to.
_UNFINISHED: Final = "a nap that did not hold"


class Wakers:
    """One watch for each session that naps; ``wake`` returns at the end of a wake."""

    def __init__(
        self,
        placements: Placements,
        records: Records,
        operations: Operations,
        wake: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._placements = placements
        self._records = records
        self._operations = operations
        self._wake = wake
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._orders: set[asyncio.Task[None]] = set()
        self._pauses: dict[str, float] = {}

    def begin(self) -> None:
        self._operations.watch(self._changed)
        for record in self._records.list():
            if record.naps:
                self._changed(record.incarnation)

    def close(self) -> None:
        """Leave all of them as they are."""
        self._operations.watch(lambda _: None)
        for task in [*self._tasks.values(), *self._orders]:
            task.cancel()

    def _changed(self, incarnation: str) -> None:
        former = self._tasks.pop(incarnation, None)
        if former is not None:
            former.cancel()
        if self._operations.running(incarnation) is None:
            task = asyncio.create_task(self._attend(incarnation))
            self._tasks[incarnation] = task
            task.add_done_callback(lambda done: self._forget(incarnation, done))

    def _forget(self, incarnation: str, done: asyncio.Task[None]) -> None:
        if self._tasks.get(incarnation) is done:
            del self._tasks[incarnation]

    async def _attend(self, incarnation: str) -> None:
        try:
            found = await asyncio.to_thread(self._find, incarnation)
            if found is None:
                self._pauses.pop(incarnation, None)
                return
            session, nap = found
            why = await self._reason(session, nap)
            await asyncio.sleep(self._pauses.get(incarnation, 0.0))
            _log.info("%s is woken by %s", session.key, why)
            # Of its own: the wake, once begun, ends this task.
            order = asyncio.create_task(self._order(incarnation, why))
            self._orders.add(order)
            order.add_done_callback(self._orders.discard)
        except NotFound:
            _log.info("%s has ended in its nap", incarnation)

    async def _reason(self, session: Session, nap: NapRecord) -> str:
        if nap.stage is not NapStage.ASLEEP:
            return _UNFINISHED
        programs = nap.in_tree(await asyncio.to_thread(trees.inspect, session))
        if len(programs) < len(nap.programs):
            return "the end of a program"
        with contextlib.closing(Watch(programs, nap.standing)) as watch:
            try:
                async with asyncio.timeout(_OPEN_SECONDS):
                    await asyncio.to_thread(watch.open, session.init_pid)
                return await watch.wait()
            except Exception as error:  # noqa: BLE001 - a session is at stake
                # Whatever is wrong here, nobody would notice what wakes it.
                _log.exception("%s cannot be watched", session.key)
                return f"the lack of a watch ({type(error).__name__})"

    def _find(self, incarnation: str) -> tuple[Session, NapRecord] | None:
        record = self._records.find(incarnation)
        if record is None or record.nap is None or not record.naps:
            return None
        try:
            session = self._placements.find(incarnation)
        except NotFound:
            return None
        return (session, record.nap) if trees.matches(record, session) else None

    async def _order(self, incarnation: str, why: str) -> None:
        pause = self._pauses.get(incarnation, 0.0)
        self._pauses[incarnation] = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        try:
            await self._wake(incarnation, why)
        except NotFound:
            _log.info("%s has ended in its nap", incarnation)
        except Exception as error:  # noqa: BLE001 - a session is at stake
            expected = isinstance(error, ReclaimError)
            if isinstance(error, ReclaimError) and error.reason is Reason.GPU_MEMORY:
                self._pauses[incarnation] = _FIRST_PAUSE
            _log.warning(
                "%s is not woken yet: %s", incarnation, error, exc_info=not expected
            )
            # It may not have come as far as an operation, which would tell of its end.
            self._changed(incarnation)
        else:
            self._pauses.pop(incarnation, None)

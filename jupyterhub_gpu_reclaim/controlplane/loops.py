"""Control loops: sampling, and comparing all sessions on every tick.

A loop looks and adds keys to the work queue, so a failed, late or missed run does no
harm. What is saved of sessions that the journal has never heard of is taken from the
one list of the store: a lost journal would ask for a list for each of them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, StoreError
from jupyterhub_gpu_reclaim.common.logs import News
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import expiry, save_points
from jupyterhub_gpu_reclaim.controlplane.decide import jobs
from jupyterhub_gpu_reclaim.controlplane.marks import Marks
from jupyterhub_gpu_reclaim.controlplane.session import (
    LIVE,
    Intent,
    SessionRow,
)
from jupyterhub_gpu_reclaim.controlplane.settle import ActionKind, settle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.decide.gpu_queue import Preemption
    from jupyterhub_gpu_reclaim.controlplane.decide.sampler import SessionSampler
    from jupyterhub_gpu_reclaim.controlplane.naps import WakeFollower
    from jupyterhub_gpu_reclaim.controlplane.observer import ObservedState
    from jupyterhub_gpu_reclaim.controlplane.phase import Observed
    from jupyterhub_gpu_reclaim.controlplane.worker import Worker
    from jupyterhub_gpu_reclaim.controlplane.workqueue import WorkQueue


_log = logging.getLogger(__name__)


#: Ticks for which one list of the store is good.
STORE_TICKS = 6
#: Sessions that are compared before the event loop gets a turn.
BREATH = 100
#: Seconds between deletions of old audit lines, and between checks for expiry notices.
PRUNE_SECONDS = 600.0
#: Failures of a state that no return can read: its other checkpoints may be all there
#: is.
_UNREAD = {
    Reason.CHECKPOINT_DAMAGED.value,
    Reason.KEY_MISSING.value,
    Reason.OTHER_VERSION.value,
}


@dataclass(eq=False)
class ControlLoops:
    worker: Worker
    sampler: SessionSampler
    queue: WorkQueue
    preemption: Preemption | None
    wakes: WakeFollower
    _prune_at: float = field(default=0.0, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.sessions, self.observer = self.worker.sessions, self.worker.observer
        self.deletions, self.judge = self.worker.deletions, self.worker.judge
        self._marks = Marks(self.sessions)
        self._news = News()

    def start(self) -> None:
        settings = self.sessions.settings
        self._tasks = [
            asyncio.create_task(
                self._every("sampling", settings.sample_interval, self._sample)
            ),
            asyncio.create_task(
                self._every("control", settings.tick_interval, self.tick)
            ),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.wakes.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _every(
        self, name: str, seconds: float, run: Callable[[], Awaitable[None]]
    ) -> None:
        while True:
            try:
                await run()
            except ReclaimError as error:
                _log.info("%s loop: retrying in %.0f s: %s", name, seconds, error)
            except Exception:  # noqa: BLE001 the last line of defence: the loop goes on
                _log.exception("%s loop failed; retrying in %.0f s", name, seconds)
            await self.sessions.clock.sleep(seconds)

    async def _sample(self) -> None:
        await self.sampler.sample()
        for key in self.worker.warnings.spared():
            self.queue.add(key)

    # --- ticks
    async def tick(self) -> None:
        settings = self.sessions.settings
        self.deletions.take_up()
        for key in self.deletions.pending_keys():
            self.queue.add(key)
        state = await self.observer.observe_all(STORE_TICKS * settings.tick_interval)
        self.sampler.measure()
        waiting = self.worker.room.line.refresh()
        if self.preemption is not None:
            self.preemption.select(waiting)
        rows = {row.key for row in self.sessions.journal.sessions()}
        missed: dict[SessionKey, StoreError] = {}
        for count, key in enumerate(sorted(rows | state.keys())):
            if count % BREATH == 0:
                await asyncio.sleep(0)  # others may answer, and readers read
            try:
                self._compare(key, state)
            except StoreError as error:  # seen again at the next tick
                self.sessions.runtime(key).compared = False
                missed[key] = error
        self._tell_missed(missed)
        self.wakes.refresh()
        jobs.refresh(self.sessions)
        self.worker.room.refresh()
        expiry.retain(self.sessions, settings.retention)
        await expiry.collect(self.sessions)
        await self._marks.settle(state.checkpoints())
        self._forget_gone(state)
        self._do_rare_work(self.sessions.clock.now())

    def _tell_missed(self, missed: Mapping[SessionKey, StoreError]) -> None:
        # A journal that does not answer misses them all: one line for it.
        key, error = next(iter(missed.items()), ("", ""))
        if self._news.is_new("journal", error):
            what = "%s: not compared, trying again: %s (%d sessions)"
            _log.warning(what, key, error, len(missed))

    def _compare(self, key: SessionKey, state: ObservedState) -> None:
        observed = self.observer.whole(key, state.session(key))
        row = self.sessions.row(key)
        if not observed.silent:
            tree = observed.tree(row.incarnation)
            self.sessions.note_nap(key, tree, state.asked)
            self.sessions.note_ended(key, observed)
        self.sessions.note_node(key, observed.tree(row.incarnation))
        action = settle(
            row, observed, self.sessions.clock.now(), self.sessions.settings
        )
        self._note_compared(row, observed, action.kind)
        unheard = action.phase is Phase.SUSPENDED and not row.since
        if unheard and not self.queue.busy(key):
            self.worker.taker.take(row, action, observed)
        elif self._wants_a_look(row, action.kind):
            self.queue.add(key)

    def _note_compared(self, row: SessionRow, observed: Observed, kind: str) -> None:
        same = kind in {ActionKind.NOTHING, ActionKind.READY, ActionKind.REPORT}
        all_answered = not observed.silent and observed.hub is not None
        self.sessions.runtime(row.key).compared = (
            same and all_answered and not _is_missing(row, observed)
        )

    def _forget_gone(self, state: ObservedState) -> None:
        sessions, here = self.sessions, state.keys()
        for key, runtime in list(sessions.runtimes.items()):
            known = key in here or sessions.journal.session(key) is not None
            if not known and runtime.waiting is None and not self.queue.busy(key):
                sessions.forget(key)

    def _do_rare_work(self, now: float) -> None:
        if now >= self._prune_at:
            expiry.give_notice(
                self.sessions,
                self.sessions.settings.retention,
                self.sessions.settings.forewarn,
            )
            self.deletions.forget_old()
            before = now - self.sessions.settings.audit
            more = self.sessions.journal.prune_audit(before)
            if not more:
                self.sessions.journal.prune_long()
            self._prune_at = now + (0.0 if more else PRUNE_SECONDS)

    def _wants_a_look(self, row: SessionRow, kind: str) -> bool:
        if self.queue.busy(row.key):
            return False
        if kind is ActionKind.READY:
            reclaim = self.judge.reclaims(row)
            reclaim = self.judge.naps(row) or reclaim
            warned = self.sessions.runtime(row.key).suspends_at is not None
            wished = row.intent is not Intent.NONE or warned
            due = save_points.is_due(self.sessions, row)
            return reclaim or wished or due or row.stop_asked is not None
        wished = row.intent is not Intent.NONE
        untold = self.sessions.runtime(row.key).end_untold
        return kind is not ActionKind.NOTHING or wished or untold


def _is_missing(row: SessionRow, observed: Observed) -> bool:
    """Whether the session, as the journal has it, cannot be seen or not be read."""
    if row.phase is Phase.SUSPENDED:
        unread = row.failure is not None and row.failure.code in _UNREAD
        return unread or observed.checkpoint(row.checkpoint) is None
    # One that has ended may need the checkpoint that it came from.
    return row.phase in LIVE and observed.tree(row.incarnation) is None

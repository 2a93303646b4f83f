"""Suspend: from a decision to a committed checkpoint, and on to a released tree.

Each state is in the journal before the next step outside, so that the reconciler can
settle a crash at any point. Nothing is ended before the commit. Decisions are taken in
``decide`` and by people, not here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import CALLED_OFF, Reason
from jupyterhub_gpu_reclaim.common.text import duration, size
from jupyterhub_gpu_reclaim.controlplane import operations, retention
from jupyterhub_gpu_reclaim.controlplane.decide import jobs
from jupyterhub_gpu_reclaim.controlplane.session import (
    SAVED,
    Intent,
    SessionEvent,
    failure_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        Decision,
        Event,
        Failure,
        SessionKey,
        Tree,
    )
    from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


_log = logging.getLogger(__name__)

#: Part of the time that a drain has left, for which it waits after a failure.
_PAUSED_PART = 0.25


@dataclass(eq=False)
class Suspender:
    sessions: Sessions
    together: Together

    async def run(
        self,
        key: SessionKey,
        by: str,
        why: Decision | None = None,
        *,
        in_use: bool = False,
        back: bool = False,
    ) -> None:
        """Suspend a running session; it is RELEASING then, or RUNNING again.

        ``why`` is the policy's reason; None if a person wants it. ``in_use``: it goes
        even if somebody has used it since it was judged. ``back``: it is to come back.

        Raises:
            Unreachable: the agent was lost on the way; the capture may go on there.
        """
        before = self.sessions.row(key)
        told = jobs.told(self.sessions, before)
        if why is not None and told not in why.message:
            why = msgspec.structs.replace(why, message=f"{why.message} {told}")
        jobs.note(self.sessions, before)
        ordered: dict[str, Any] = {}
        if back:
            ordered = {"intent": Intent.RESUME, "intent_by": by}
        row = self.sessions.apply(
            key,
            SessionEvent.SUSPEND,
            by=by,
            why=why,
            note=told,
            attempt=self.sessions.new_id(),
            **ordered,
        )
        self.sessions.counters.causes.labels(why.code if why else "request").inc()
        self.sessions.begin(key, "suspend")
        judged = why is not None and not in_use
        sample = self.sessions.runtime(key).sample if judged else None
        await self.follow(row, None if sample is None else sample.at)

    def found(self, row: SessionRow, tree: Tree) -> None:
        """Note a capture under way that somebody else has ordered."""
        self.sessions.begin(row.key, "suspend")
        self.sessions.apply(row.key, SessionEvent.SUSPEND, attempt=tree.checkpoint)

    async def follow(self, row: SessionRow, seen: float | None) -> None:
        """Follow the capture of a SUSPENDING session up to its end, or begin it.

        It is not begun if the session was used since ``seen``; 0: in no case.
        """
        generation = self.sessions.next_generation(row.key)
        order = orders.Capture(row.attempt, generation, seen=seen)

        def hear(event: Event) -> bool:
            self.sessions.step(row.key, "suspend", event)
            return True

        end = await operations.end_of(
            self.sessions, row, order, "suspend", hear=hear, is_over=self._is_over(row)
        )
        if not self._still(row):
            return
        if end.checkpoint is not None:
            self.committed(self.sessions.row(row.key), end.checkpoint)
        elif end.failure is not None:
            self.failed(self.sessions.row(row.key), end.failure)

    def _is_over(self, row: SessionRow) -> Callable[[SessionRow], bool]:
        drains, code = self.sessions.drains, Reason.NODE_DRAINS.value
        drained = row.cause is not None and row.cause.code == code
        drained = drained and row.stop_asked is None

        def is_over(now: SessionRow) -> bool:
            undrained = drained and drains.of_session(now) is None
            broken = self.together.breaks(now) is not None
            return not self._still(row) or undrained or broken

        return is_over

    def _still(self, row: SessionRow) -> bool:
        now = self.sessions.row(row.key)
        return (now.phase, now.attempt) == (row.phase, row.attempt)

    def committed(self, row: SessionRow, info: CheckpointInfo) -> None:
        now = self.sessions.clock.now()
        self.sessions.counters.still.observe(info.frozen_seconds)
        self.sessions.apply(
            row.key,
            SessionEvent.COMMITTED,
            note=f"{size(info.logical_bytes)}, {size(info.stored_bytes)} of it newly"
            f" written; that took {duration(now - row.since)}.",
            checkpoints=self.sessions.found([info]),
            checkpoint=info.id,
            failures=0,
            backoff_until=None,
            **retention.highest(row, [info]),
        )

    def failed(self, row: SessionRow, failure: Failure) -> None:
        """SUSPENDING -> RUNNING: rolled back; the next try waits."""
        if not self._still(row):
            return
        row = self.sessions.row(row.key)
        failure = self._reason_called_off(row, failure)
        called_off = failure.code in CALLED_OFF
        failures = row.failures if called_off else row.failures + 1
        self.sessions.counters.ended("suspend", "failed", failure.code)
        self.sessions.end(row.key)
        self.sessions.apply(
            row.key,
            SessionEvent.CAPTURE_FAILED,
            failure=failure,
            failures=failures,
            backoff_until=self._tried_at(row, failures, failure.code),
        )
        self.together.went_on(row)

    def _tried_at(self, row: SessionRow, failures: int, code: str = "") -> float:
        """Return when the next try may begin; a drain has no time for a long pause."""
        now, drain = self.sessions.clock.now(), self.sessions.drains.of_session(row)
        wait = self.sessions.settings.pause_after(failures)
        if code == Reason.WOULD_NOT_RETURN.value:
            # Found out while it stood still: not again for the same soon.
            wait = self.sessions.settings.backoff_limit
        if drain is not None and drain.until is not None and drain.until > now:
            wait = min(wait, (drain.until - now) * _PAUSED_PART)
        return now + wait

    def _reason_called_off(self, row: SessionRow, failure: Failure) -> Failure:
        alone = self.together.breaks(row)
        return alone if alone and failure.code == Reason.CANCELLED.value else failure

    def rolled_back(self, row: SessionRow, tree: Tree) -> None:
        """Note that the tree runs, although a capture was under way or committed."""
        failure = failure_of(Reason.AGENT_RESTARTED)
        mine = tree.checkpoint in {"", row.attempt or row.checkpoint}
        if tree.failure is not None and mine:
            failure = self._reason_called_off(row, tree.failure)
        if row.phase is Phase.SUSPENDING:
            self.failed(row, failure)
        else:
            self.thawed(row, failure)

    async def stop_at_hub(self, row: SessionRow) -> None:
        """Ask the Hub to stop the server of a captured session; may be repeated."""
        if row.stop_asked is None:
            self.sessions.update(row.key, stop_asked=self.sessions.clock.now())
        try:
            await self.sessions.hub.stop(row.key)
        except Refused as error:
            if not error.retryable:
                raise
            _log.info("%s: the Hub is not ready for a stop: %s", row.key, error)

    async def release(self, row: SessionRow) -> None:
        """End the captured tree; idempotent. If thawed meanwhile, it is RUNNING."""
        try:
            release = orders.Release(row.checkpoint)
            await self.sessions.agent.order(row.incarnation, release)
        except NotFound as error:
            _log.info("%s: nothing left to release: %s", row.key, error)
        except Refused as error:
            if error.reason is not Reason.WENT_ON:
                raise
            if self.sessions.row(row.key) == row and row.phase in SAVED:
                self.thawed(row, codec.failure_of(error))

    def released(self, row: SessionRow) -> None:
        if self.sessions.row(row.key).phase is Phase.RELEASING:
            self.sessions.counters.ended("suspend", "ok")
            self.sessions.apply(row.key, SessionEvent.RELEASED)

    async def thaw(self, row: SessionRow) -> None:
        await self.sessions.agent.order(row.incarnation, orders.Thaw())
        if self.sessions.row(row.key) == row and row.phase is Phase.RELEASING:
            alone = self.together.breaks(row) or self.together.waits(row)
            failure = alone or failure_of(Reason.HUB_UNREACHABLE)
            self.thawed(row, failure, asked=alone is None)

    def thawed(self, row: SessionRow, failure: Failure, *, asked: bool = True) -> None:
        """Back to RUNNING; ``asked``: the Hub may have been asked to stop it."""
        self.sessions.counters.ended("suspend", "failed", failure.code)
        kept = self.sessions.journal.checkpoints(row.key)
        self.sessions.apply(
            row.key,
            SessionEvent.THAWED,
            failure=failure,
            checkpoint=retention.back_again(row, kept),
            failures=row.failures + 1,
            backoff_until=self._tried_at(row, 1),
            # a stop by the Hub that comes now may still be ours: ``Stops.plan``
            stop_asked=row.stop_asked or (self.sessions.clock.now() if asked else None),
        )
        self.together.went_on(row)

"""Worker: compares the three views of one session, does the one action, looks again.

Between two looks it remembers only how long an odd state has lasted; everything else is
read again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused
from jupyterhub_gpu_reclaim.common.models import (
    Failure,
    HubState,
    Phase,
    SessionKey,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import save_points, taking
from jupyterhub_gpu_reclaim.controlplane.decide import draining
from jupyterhub_gpu_reclaim.controlplane.session import (
    LIVE,
    NO_ORDER,
    Intent,
    SessionRow,
    failure_of,
)
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE
from jupyterhub_gpu_reclaim.controlplane.settle import (
    Action,
    ActionKind,
    settle,
)

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.drain import Drain
    from jupyterhub_gpu_reclaim.common.models import Decision, Tree
    from jupyterhub_gpu_reclaim.controlplane.decide.judge import Judge, Warnings
    from jupyterhub_gpu_reclaim.controlplane.decide.room import RoomMaker
    from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
    from jupyterhub_gpu_reclaim.controlplane.decide.turns import Turns
    from jupyterhub_gpu_reclaim.controlplane.deletions import Deletions
    from jupyterhub_gpu_reclaim.controlplane.naps import Napper
    from jupyterhub_gpu_reclaim.controlplane.observer import Observer
    from jupyterhub_gpu_reclaim.controlplane.phase import Observed
    from jupyterhub_gpu_reclaim.controlplane.resume import Resumer
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
    from jupyterhub_gpu_reclaim.controlplane.suspend import Suspender
    from jupyterhub_gpu_reclaim.controlplane.taking import Taker


_log = logging.getLogger(__name__)

_UNDER_WAY = {Phase.SUSPENDING, Phase.RELEASING, Phase.RESUMING}
#: Seconds after which a stop that the Hub was asked for but has not done is forgotten.
STOP_FORGOTTEN = 60.0
#: Factor by which waiting for a GPU is looked at less often than other operations.
WAITING_PACES = 5

Handler = Callable[[SessionRow, Action], Awaitable[float | None]]


@dataclass(eq=False)
class Worker:
    """Does what the reconciler says; ``work`` is idempotent and may be cancelled."""

    sessions: Sessions
    observer: Observer
    deletions: Deletions
    judge: Judge
    warnings: Warnings
    taker: Taker
    suspender: Suspender
    resumer: Resumer
    napper: Napper
    room: RoomMaker
    turns: Turns
    together: Together

    def __post_init__(self) -> None:
        self._handlers: dict[str, Handler] = {
            ActionKind.WAIT: self._wait,
            ActionKind.FOLLOW: self._follow,
            ActionKind.CALL_OFF: self._call_off,
            ActionKind.STOP_AT_HUB: self._stop_at_hub,
            ActionKind.RELEASE: self._release,
            ActionKind.THAW: self._thaw,
            ActionKind.BRING_BACK: self._bring_back,
            ActionKind.KILL: self._kill,
            ActionKind.REPORT: self._report,
        }

    async def work(self, key: SessionKey) -> float | None:
        """Look once and act once; return the seconds until the next look, if any.

        Raises:
            ReclaimError: the action could not be done now; again later.
        """
        deleting = await self._delete(key)
        wait = await self._settle(key)
        self.room.pass_over(key)
        return self.sessions.settings.pace if deleting and wait is None else wait

    async def _delete(self, key: SessionKey) -> bool:
        """Carry an order to delete out; returns whether to look again soon."""
        try:
            return await self.deletions.carry_out(key)
        except ReclaimError as error:
            _log.info("%s: what is left of it is deleted later: %s", key, error)
            return False

    async def _settle(self, key: SessionKey) -> float | None:
        row = self.sessions.row(key)
        observed = await self.observer.observe(key)
        if self.sessions.row(key) != row:
            return 0.0  # it went on while we looked
        action = settle(
            row, observed, self.sessions.clock.now(), self.sessions.settings
        )
        wait = self._patience(key, action)
        if wait > 0:
            return min(wait, self.sessions.settings.tick_interval)
        if action.kind not in {ActionKind.NOTHING, ActionKind.WAIT, ActionKind.READY}:
            _log.info("%s: %s: %s", key, row.phase.value, action.kind.value)
        if action.kind in {ActionKind.READY, ActionKind.NOTHING}:
            return await self._act_on_intent(row, action, observed)
        return await self.act(row, action, observed)

    async def act(
        self,
        row: SessionRow,
        action: Action,
        observed: Observed,
        remembered: Collection[str] = (),
    ) -> float | None:
        """Do one action of the reconciler's, in whosever task; see :meth:`work`."""
        if action.kind in self._handlers:
            return await self._handlers[action.kind](row, action)
        if action.phase in LIVE and self._is_to_end(row, observed):
            await taking.end(self.sessions, row.key, row.incarnation)
            return await self._kill(row, action._replace(tree=None))
        self.taker.take(row, action, observed, remembered)
        taken = self.sessions.row(row.key) != row
        return 0.0 if taken else self.sessions.settings.pace

    def _is_to_end(self, row: SessionRow, observed: Observed) -> bool:
        """Whether what is back was given up before, by an order that had no answer.

        It would be ended at the next visit, when its checkpoint may be gone.
        """
        if not (row.phase.rests or row.phase is Phase.RESUMING):
            return False
        ordered = taking.is_ordered(self.sessions, row.key, row.incarnation)
        gone = observed.checkpoint(row.checkpoint) is None
        if observed.saved is None:  # nobody has asked: what stands may be all there is
            gone = observed.frozen() is not None
        return ordered and not gone and observed.hub is not HubState.RUNNING

    # --- waiting
    def _patience(self, key: SessionKey, action: Action) -> float:
        """Seconds for which an odd state must still last before its action is done."""
        runtime = self.sessions.runtime(key)
        if not action.patient:
            runtime.odd = None
            return 0.0
        what = f"{action.kind} {action.tree.incarnation if action.tree else ''}"
        now = self.sessions.clock.monotonic()
        if runtime.odd is None or runtime.odd[0] != what:
            runtime.odd = (what, now)
        left = runtime.odd[1] + self.sessions.settings.orphan_grace - now
        if left <= 0:
            runtime.odd = None
        return left

    async def _wait(self, row: SessionRow, action: Action) -> float | None:
        operation = self.sessions.operation(row.key)
        told = operation is not None and operation.ended
        if action.tree is not None and not told:
            # The spawner has not heard the end of this start, which came while no
            # service was there; the agent repeats it.
            await self.resumer.follow(row)
        # The spawner reports a place that is being made (a pod may wait for hours).
        spawner_reports = row.phase is Phase.RESUMING and not row.placed
        return None if spawner_reports else self.sessions.settings.pace

    async def _act_on_intent(
        self, row: SessionRow, action: Action, observed: Observed
    ) -> float | None:
        if action.tree is not None and row.intent is Intent.WAKE:
            # Whatever the Hub says: it only gets back what it had.
            return await self._nap_or_wake(row, action.tree)
        if action.kind is ActionKind.READY and _may_begin(row, observed):
            return await self._act_when_ready(row, action)
        if row.bring_back and row.phase.rests:
            if observed.hub is HubState.STOPPED:
                taking.bring_back(self.sessions, row)
            return self.sessions.settings.pace
        if row.phase is Phase.SUSPENDED and row.intent is Intent.RESUME:
            if observed.hub is HubState.STOPPED:
                self.resumer.start(row)
            return self.sessions.settings.pace
        runtime = self.sessions.runtime(row.key)
        if runtime.end_untold:
            if observed.hub is HubState.STOPPED and not observed.silent:
                runtime.end_untold = False
                await self.sessions.hub.stop(row.key)
            return None
        wished = row.phase in LIVE and row.intent is not Intent.NONE
        soon = wished or row.phase in _UNDER_WAY
        return self.sessions.settings.pace if soon else None

    # --- suspend
    async def _act_when_ready(self, row: SessionRow, action: Action) -> float | None:
        if row.intent is Intent.SUSPEND:
            return await self._suspend_ordered(row)
        if row.intent is Intent.NAP and action.tree is not None:
            return await self._nap_or_wake(row, action.tree)
        drained = self.sessions.drains.of_session(row) is not None
        if row.intent is Intent.SAVE and not drained:
            return await self._save(row, row.intent_by)
        if row.bring_back:  # it went on after all
            row = self.sessions.update(row.key, bring_back="")
        now = self.sessions.clock.now()
        if row.stop_asked is not None and now - row.stop_asked > STOP_FORGOTTEN:
            row = self.sessions.update(row.key, stop_asked=None)
        if not self.judge.reclaims(row):
            return await self._save_or_nap(row)
        wait = self.warnings.warn(row)
        return wait if wait > 0 else await self._suspend_after_warning(row)

    async def _save_or_nap(self, row: SessionRow) -> float | None:
        self.warnings.spare(row)
        if save_points.is_due(self.sessions, row):
            return await self._save(row, SERVICE)
        return await self._nap_when_idle(row)

    async def _suspend_after_warning(self, row: SessionRow) -> float:
        drain = self.sessions.drains.of_session(row)
        if drain is not None:
            return await self._drain(row, drain)
        if not await self.warnings.confirm(row):
            return self.sessions.settings.pace
        return await self._suspend(row, SERVICE, self.judge.why(row.key))

    async def _suspend_ordered(self, row: SessionRow) -> float:
        judged = row.intent_by == SERVICE and self.together.members(row)
        if not judged or row.stop_asked is not None:
            return await self._suspend(row, row.intent_by)
        if not await self.warnings.is_fresh(row):
            return self.sessions.settings.pace
        if self.judge.reclaims(row):
            return await self._suspend(row, SERVICE, self.judge.why(row.key))
        self.sessions.update(row.key, **NO_ORDER)
        return 0.0

    async def _suspend(
        self, row: SessionRow, by: str, why: Decision | None = None
    ) -> float:
        self.together.take_along(row, by)
        if not self.turns.has(row):
            return self.sessions.settings.pace
        await self.suspender.run(row.key, by, why)
        return 0.0

    async def _drain(self, row: SessionRow, drain: Drain) -> float:
        # The first request waits, so that others ask, too.
        rank = draining.rank(self.sessions, row)
        if not self.turns.has(row, rank, first=False):
            return self.sessions.settings.pace
        back, why = draining.comes_back(self.sessions, row), self.judge.why(row.key)
        self.together.take_along(row, drain.by)
        await self.suspender.run(row.key, drain.by, why, in_use=True, back=back)
        return 0.0

    async def _save(self, row: SessionRow, by: str) -> float:
        if self.turns.is_free(row):
            with self.turns.saving(row):
                await save_points.save(self.sessions, row, by)
        return self.sessions.settings.pace

    async def _follow(self, row: SessionRow, action: Action) -> float:
        del action
        if row.phase is Phase.SUSPENDING:
            await self.suspender.follow(row, seen=0.0)
            return 0.0
        await self.resumer.follow(row)
        waits = self.sessions.runtime(row.key).lacks_memory_since is not None
        return self.sessions.settings.pace * (WAITING_PACES if waits else 1)

    async def _call_off(self, row: SessionRow, action: Action) -> None:
        """Call an order off that cannot be begun, and say so: it may be given again."""
        failure = action.failure
        if (silence := self.sessions.silences.get(row.node)) is not None:
            failure = Failure(
                code=silence.code,
                message=silence.message,
                hint=silence.hint,
                retryable=True,
            )
        line = self.sessions.audit_line(
            row.key, SERVICE, "call off", failure.message if failure else ""
        )
        self.sessions.update(row.key, line, failure=failure, bring_back="", **NO_ORDER)

    async def _stop_at_hub(self, row: SessionRow, action: Action) -> float:
        if action.tree is not None and self.together.breaks(row):
            return await self._thaw(row, action)
        if action.tree is not None and self.together.waits(row):
            await self.sessions.until(
                row.key,
                lambda now: (
                    bool(self.together.breaks(now)) or not self.together.waits(now)
                ),
                self.sessions.settings.pace,
            )
            return 0.0
        await self.suspender.stop_at_hub(row)
        return self.sessions.settings.pace

    async def _release(self, row: SessionRow, action: Action) -> float:
        del action
        await self.suspender.release(row)
        return 0.0

    async def _thaw(self, row: SessionRow, action: Action) -> float:
        tree = action.tree
        if tree is not None and tree.state is TreeState.CAPTURING:
            await self.sessions.agent.order(tree.incarnation, orders.Cancel())
            return self.sessions.settings.pace
        if tree is not None and tree.incarnation != row.incarnation:
            # Nobody knows it.
            await self.sessions.agent.order(tree.incarnation, orders.Thaw())
            return self.sessions.settings.pace
        try:
            await self.suspender.thaw(row)
        except Refused as error:
            ending = tree is not None and error.reason is Reason.WRONG_PHASE
            if not ending or row.phase is not Phase.RELEASING:
                raise
            # The agent has begun to end it, and only that can be finished.
            await self.suspender.release(row)
        return self.sessions.settings.pace

    # --- naps
    async def _nap_when_idle(self, row: SessionRow) -> float | None:
        if self.sessions.runtime(row.key).makes_room_for is not None:
            return await self._make_room(row)
        if not self.judge.naps(row):
            return None
        if not await self.warnings.is_fresh(row) or not self.judge.naps(row):
            return self.sessions.settings.pace
        why = self.sessions.runtime(row.key).nap_decision
        await self.napper.nap(row, SERVICE, why)
        return 0.0

    async def _make_room(self, row: SessionRow) -> float:
        if not await self.warnings.is_fresh(row):
            return self.sessions.settings.pace
        # Who waited may have its memory by now.
        wanted = self.sessions.runtime(row.key).makes_room_for is not None
        why = self.judge.gives_room(row) if wanted else None
        if why is not None:
            await self.napper.make_room(row, why)
        self.room.refresh()  # another one has to, if this one could not
        return 0.0

    async def _nap_or_wake(self, row: SessionRow, tree: Tree) -> float:
        wakes = row.intent is Intent.WAKE
        if tree.nap is None if wakes else tree.state is TreeState.NAPPING:
            self.sessions.update(row.key, **NO_ORDER)
        elif wakes:
            return await self.napper.wake(row, row.intent_by)
        else:
            await self.napper.nap(row, row.intent_by)
        return 0.0

    # --- resume
    async def _bring_back(self, row: SessionRow, action: Action) -> float:
        """Bring back the wanted checkpoint; if the session's is gone, the Hub's."""
        hubs = action.saved.id if action.saved is not None else ""
        taking.bring_back(self.sessions, row, checkpoint=hubs, gone=bool(hubs))
        return 0.0

    # --- leftovers
    async def _kill(self, row: SessionRow, action: Action) -> float:
        tree = action.tree
        if tree is not None:
            await taking.end(self.sessions, row.key, tree.incarnation)
        if row.phase is not Phase.RESUMING:
            return self.sessions.settings.pace
        failure = tree.failure if tree is not None else None
        self.resumer.failed(row, failure or failure_of(Reason.CANCELLED))
        return 0.0

    async def _report(self, row: SessionRow, action: Action) -> None:
        if action.tree is None:
            return
        second = action.tree.incarnation
        failure = failure_of(Reason.SECOND_TREE, incarnation=second)
        failure = msgspec.structs.replace(failure, incarnation=second)
        if row.failure == failure:
            return
        _log.warning("%s: %s", row.key, failure.message)
        line = self.sessions.audit_line(row.key, SERVICE, "report", failure.message)
        self.sessions.update(row.key, line, failure=failure)


def _may_begin(row: SessionRow, observed: Observed) -> bool:
    """Whether the Hub allows a suspend to begin: not during a start or a stop.

    But during a stop that we have asked for and that comes late (``Stops.plan``).
    """
    if observed.hub is HubState.STOPPING:
        return row.stop_asked is not None and row.intent is Intent.SUSPEND
    return observed.settled

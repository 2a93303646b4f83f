"""Stop planner: whether a session may be ended, and what its end means.

A stop by a person stays a real stop; a stop that the service itself asked for releases
the captured tree. A checkpoint is never deleted here, except if its server is deleted.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.auth.principals import of_user
from jupyterhub_gpu_reclaim.common.errors import (
    ReclaimError,
    Refused,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Phase,
    Placement,
    SessionKey,
    StopPlan,
    TreeState,
    of_session,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane.checkpoints import (
    bring_back,
    expiry,
    lineage,
)
from jupyterhub_gpu_reclaim.controlplane.flows import adoption, vanished
from jupyterhub_gpu_reclaim.controlplane.journal import audit_log
from jupyterhub_gpu_reclaim.controlplane.loop.reconciler import Observed
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE, SAVED, SessionEvent
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent, Keeping, SessionRow
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Tree
    from jupyterhub_gpu_reclaim.controlplane.api.starts import StartPlanner
    from jupyterhub_gpu_reclaim.controlplane.flows.resume import Resumer
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions
    from jupyterhub_gpu_reclaim.controlplane.sessions.renames import Renames

_log = logging.getLogger(__name__)

#: A stop this soon after the Hub's check of the server may be a result of that check.
CHECK_SECONDS = 300.0
#: Marks of when each culler of the Hub last ended a session unsaved.
_CULLED = "culled:"
#: Seconds for which that is told.
_LATELY = 86400.0


class StopPlanner:
    """Answers the spawner before and after a stop.

    Args:
        sessions: the rows.
        agent: the agents.
        resumer: notes that a restore has ended well.
        renames: knows what is there under a former name.
        starts: cancels a capture that is under way.
        look: adds a session's key to the work queue.
        settings: the limits.
    """

    def __init__(
        self,
        *,
        sessions: Sessions,
        agent: Agent,
        resumer: Resumer,
        renames: Renames,
        starts: StartPlanner,
        look: Callable[[SessionKey], None],
        settings: Settings,
    ) -> None:
        self._sessions = sessions
        self._agent = agent
        self._resumer = resumer
        self._renames = renames
        self._starts = starts
        self._look = look
        self._settings = settings

    async def plan(self, placement: Placement) -> StopPlan:
        """See ``Controller.plan_stop``."""
        key = self._renames.row_of(placement).key
        checked = self._sessions.runtime(key).hub_checked
        now = self._sessions.clock.monotonic()
        if checked is not None and now - checked <= CHECK_SECONDS:
            await self._let_it_finish(key)
        with suppress(Unreachable):
            await self._starts.call_off(key)
        row = self._sessions.row(key)
        if not self._is(row, placement):
            return await self._unknown(row, placement)
        if row.phase is Phase.RESUMING:
            row = await self._settle_return(row)
        unsaved = False
        if row.stop_asked is not None and row.phase in LIVE:
            await self._save_first(key)
            row = self._sessions.row(key)
            unsaved = row.phase in LIVE
        if unsaved or row.phase is Phase.SUSPENDING:
            # It could be neither cancelled nor finished, or nobody but us has asked for
            # the end of what is not saved: nothing may be ended now.
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="suspend")
        if row.phase in LIVE:
            if await self._look_for_loss(row):
                return StopPlan(action="keep")
            row = self._sessions.row(key)
            if not self._is(row, placement):  # another was adopted while we looked
                return await self._unknown(row, placement)
        if row.phase in SAVED or row.phase is Phase.RESUMING:
            return self._release(key)
        return StopPlan(action="stop")

    def _release(self, key: SessionKey) -> StopPlan:
        """It is captured: what the Hub is to remember of it."""
        row = self._sessions.row(key)
        suspension = self._sessions.suspension(row)
        return StopPlan(
            action="release", checkpoint=row.checkpoint, suspension=suspension
        )

    async def _let_it_finish(self, key: SessionKey) -> None:
        """Whether a restarted Hub stops a server only because it found it frozen.

        Nobody asked for that stop, so the capture is finished.
        """
        await self._sessions.until(
            key,
            lambda row: row.phase is not Phase.SUSPENDING,
            self._settings.settle_limit,
        )

    @staticmethod
    def _is(row: SessionRow, placement: Placement) -> bool:
        return row.incarnation == placement.incarnation

    async def _unknown(self, row: SessionRow, placement: Placement) -> StopPlan:
        """An incarnation that the journal does not know: agent and store know it.

        Raises:
            Unreachable: they do not answer; the spawner can see what is frozen by
            itself.
            StoreError: it has ended, and what may come back is not known.
        """
        trees = tuple(await self._agent.trees(placement.key))
        observed = self._sessions.living(row.key, Observed(trees, (), None))
        for tree in observed.trees or ():
            if tree.incarnation != placement.incarnation:
                continue
            if tree.state is TreeState.CAPTURED:
                return await self._take_captured(row, tree.checkpoint)
        left = {tree.incarnation for tree in observed.left()}
        if placement.incarnation in left:
            return StopPlan(action="stop")
        if observed.whole():
            # The Hub's database is older: it must not forget what it cannot see.
            return StopPlan(action="keep")
        if await self._renames.names_of(placement.incarnation) - {placement.key}:
            return StopPlan(action="keep")  # nor what has its user's former name
        return await self._take_saved(row, placement, trees)

    async def _take_saved(
        self, row: SessionRow, placement: Placement, trees: Sequence[Tree]
    ) -> StopPlan:
        """One that has ended may have been captured before: then it is suspended.

        Nobody has stopped it: where anything may come back, the Hub must not forget the
        session. What it came from may be all that is left of it; the reconciler asks.
        """
        all_saved = await self._agent.checkpoints()
        saved = of_session(row.key, all_saved)
        observed = self._starts.facts(row.key, trees, saved)
        row = self._sessions.row(row.key)
        found = lineage.found(row, observed)
        if not found:
            if _is_elsewhere(placement, all_saved):
                return StopPlan(action="keep")
            # The Hub asks about an earlier life: what it was told of this one is lost.
            there = row.phase in {*SAVED, *LIVE, Phase.RESUMING}
            return StopPlan(action="keep" if there and row.checkpoint else "stop")
        newest = found[0]
        if newest.incarnation != placement.incarnation:
            return StopPlan(action="keep")
        # The Hub remembers that incarnation, which is as good as its checkpoint.
        adoption.saved(self._sessions, row, observed, self._settings, newest.id)
        return StopPlan(action="release", checkpoint=newest.id)

    async def _take_captured(self, row: SessionRow, checkpoint: str) -> StopPlan:
        """A captured tree that the journal does not know is released, not stopped."""
        saved = await self._agent.checkpoints(row.key)
        info = next((s for s in saved if s.id == checkpoint), None)
        if info is None:
            return StopPlan(action="stop")
        adoption.captured(self._sessions, row, info, self._settings)
        return StopPlan(action="release", checkpoint=info.id)

    async def _save_first(self, key: SessionKey) -> None:
        """Capture once more: our stop came so late that the session runs again.

        The Hub cannot be told to leave the server running (trap T8).
        """
        self._sessions.update(key, intent=Intent.SUSPEND, intent_by=SERVICE)
        self._look(key)
        await self._sessions.until(
            key,
            lambda row: (
                row.phase is not Phase.SUSPENDING and row.intent is not Intent.SUSPEND
            ),
            self._settings.settle_limit,
        )

    async def _settle_return(self, row: SessionRow) -> SessionRow:
        """How a return has ended of which the Hub knows more than the journal.

        The session runs; or it is suspended as before, if its programs have ended since
        and the service was started again meanwhile.

        Raises:
            Unreachable: as :meth:`_look_for_loss`.
            Refused: it is even frozen again: the journal is older than that.
        """
        if self._came_back(row):
            return self._resumer.restored(row)
        trees = await self._agent.trees(row.key)
        states = [tree.state for tree in trees if tree.incarnation == row.incarnation]
        now = self._sessions.row(row.key)
        if now != row or now.phase is not Phase.RESUMING:
            return now
        if {TreeState.CAPTURING, TreeState.CAPTURED}.intersection(states):
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="suspend")
        if {TreeState.RUNNING, TreeState.NAPPING}.intersection(states):
            return self._resumer.restored(row)
        if all(state is TreeState.GONE for state in states):
            return self._sessions.apply(row.key, SessionEvent.STOPPED, placed=False)
        return row

    async def _look_for_loss(self, row: SessionRow) -> bool:
        """A session whose programs have ended is what was saved of it, if anything was.

        One that died soon after its return goes back to its checkpoint; one that was
        captured, which a journal of before that does not know, is suspended.

        Returns:
            Whether it has come back since, and lives: Hub and journal are older.

        Raises:
            Unreachable: the agent does not answer; the spawner can see by itself
                whether the programs live, and keeps what may come back if not.
            StoreError: they have ended, and it is not known what may come back.
        """
        trees = await self._agent.trees(row.key)
        if any(
            tree.incarnation == row.incarnation and tree.state is not TreeState.GONE
            for tree in trees
        ):
            return False
        saved = await self._agent.checkpoints(row.key)
        now = self._sessions.row(row.key)
        # Not the whole row: an order that came meanwhile does not undo what is lost.
        session = (row.incarnation, row.checkpoint)
        if now.phase not in LIVE or (now.incarnation, now.checkpoint) != session:
            return False
        observed = self._starts.facts(row.key, trees, saved)
        if observed.whole():
            self._look(row.key)
            return True
        missed = [info for info in observed.unknown() if _is_its(info, row)]
        if missed:
            adoption.saved(self._sessions, now, observed, self._settings, missed[-1].id)
        elif info := observed.checkpoint(row.checkpoint):
            adoption.lost(self._sessions, now, info)
        return False

    async def release(self, placement: Placement) -> None:
        """See ``Controller.release``."""
        row = self._renames.row_of(placement)
        if not self._is(row, placement) or row.phase not in SAVED:
            raise Refused(Reason.NOT_CAPTURED)
        try:
            await self._agent.release(row.incarnation, row.checkpoint)
        finally:
            self._look(row.key)

    def stopped(self, placement: Placement) -> None:
        """See ``Controller.stopped``."""
        row = self._renames.row_of(placement)
        if self._is(row, placement):
            if row.phase is Phase.RESUMING and self._came_back(row):
                row = self._resumer.restored(row)
            if row.phase in {*LIVE, Phase.SUSPENDING}:
                self._stop(row, placement)
            elif row.phase is Phase.RESUMING:
                self._sessions.apply(row.key, SessionEvent.STOPPED, placed=False)
        self._look(row.key)

    def _came_back(self, row: SessionRow) -> bool:
        """Whether the restore under way has ended well."""
        operation = self._sessions.operation(row.key)
        return operation is not None and operation.succeeded

    def _stop(self, row: SessionRow, placement: Placement) -> None:
        """A real stop; a checkpoint that is still kept from the return is set aside.

        Args:
            row: the session.
            placement: how it ended, where nobody had the Hub stop it; else who did.
        """
        aside = expiry.kept(
            self._sessions, row.checkpoint, Keeping.ASIDE, self._settings.set_aside
        )
        if row.bring_back != row.checkpoint:
            aside += bring_back.off(self._sessions, row, self._settings)
        changes: dict[str, Any] = {
            "checkpoints": aside,
            "bring_back": "",
            "checkpoint": "",
            "dismissed": row.checkpoint or row.dismissed,
        }
        if placement.failure is not None:
            ended = placement.failure
            vanished.take(self._sessions, self._agent, row, ended, **changes)
            return
        by = placement.by or of_user(row.key.user)
        why = self._culled(by) if placement.culled else None
        self._sessions.apply(row.key, SessionEvent.STOPPED, by=by, why=why, **changes)

    async def forget(self, deletion: Deletion) -> None:
        """See ``Controller.forget``."""
        key = deletion.key
        if deletion.kept_from:
            self._keep_for_a_while(key, deletion.kept_from)
            return
        if self._sessions.deletions is not None:
            self._sessions.deletions.take(deletion)
            with suppress(ReclaimError):
                await self._sessions.deletions.carry_out(key)
        self._look(key)

    def _culled(self, by: str) -> Decision:
        """Note that a culler ends sessions before they are saved."""
        now, mark = self._sessions.clock.now(), _CULLED + by
        self._sessions.journal.write(*audit_log.set_mark(mark, now))
        code, told = Reason.CULLED.value, Reason.CULLED.sentence(by=by)
        return Decision(reclaim=False, code=code, message=told)

    def lately_culled(self) -> list[str]:
        """Which cullers have ended sessions unsaved in the last day, in sentences."""
        now = self._sessions.clock.now()
        found = audit_log.marks(self._sessions.journal, _CULLED)
        return [
            f"{name.removeprefix(_CULLED)} ends sessions for being idle, the last"
            f" {duration(max(now - at, 0.0))} ago; nothing of them was saved."
            for name, at in sorted(found.items())
            if now - at < _LATELY
        ]

    def _keep_for_a_while(self, key: SessionKey, program: str) -> None:
        """A program has deleted the user: what is suspended is a former account's."""
        row, seconds = self._sessions.row(key), self._settings.set_aside
        kept, claimed = [], row.claimed
        if row.phase is Phase.SUSPENDED:  # whoever has the name next wants it
            kept = expiry.kept(self._sessions, row.checkpoint, Keeping.CURRENT, seconds)
            claimed = True
        line = self._sessions.audit_line(key, program, "user deleted")
        self._sessions.update(key, line, checkpoints=kept, claimed=claimed)
        self._look(key)


def _is_elsewhere(placement: Placement, saved: Sequence[CheckpointInfo]) -> bool:
    """Whether that very session was saved under its user's former name."""
    return placement.session != "" and any(
        info.session == placement.session and info.key != placement.key
        for info in saved
    )


def _is_its(info: CheckpointInfo, row: SessionRow) -> bool:
    """Whether that checkpoint is of the row's session; older agents wrote no id."""
    if info.session and row.session:
        return info.session == row.session
    return info.incarnation == row.incarnation

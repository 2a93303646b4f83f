"""Stop planner: whether a session may be ended, and what its end means.

A stop by a person stays a real stop; a stop that the service itself asked for releases
the captured tree. A checkpoint is never deleted here, except if its server is deleted.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
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
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane.checkpoints import expiry
from jupyterhub_gpu_reclaim.controlplane.flows import ending
from jupyterhub_gpu_reclaim.controlplane.journal import notes
from jupyterhub_gpu_reclaim.controlplane.journal.notes import NoteKind
from jupyterhub_gpu_reclaim.controlplane.model.actions import ActionKind, Want
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE, SAVED, SessionEvent
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent, Keeping, SessionRow
from jupyterhub_gpu_reclaim.controlplane.sessions import owners
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
    from jupyterhub_gpu_reclaim.controlplane.api.questions import Questions
    from jupyterhub_gpu_reclaim.controlplane.checkpoints.deletions import Deletions
    from jupyterhub_gpu_reclaim.controlplane.flows.resume import Resumer
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

_log = logging.getLogger(__name__)

#: Seconds for which such a mark is told.
_LATELY = 86400.0


class StopPlanner:
    def __init__(
        self,
        *,
        sessions: Sessions,
        agent: Agent,
        deletions: Deletions,
        resumer: Resumer,
        questions: Questions,
    ) -> None:
        self._sessions = sessions
        self._agent = agent
        self._deletions = deletions
        self._resumer = resumer
        self._questions = questions

    async def plan(self, placement: Placement) -> StopPlan:
        """Answer ``release`` if that incarnation is (now) suspended, else ``stop``.

        A capture under way is cancelled or finished first. Idempotent.

        Raises:
            Refused: ``operation_in_flight``: neither was possible; end nothing now.
            StoreError: it has ended, and what may come back is not known.
            Unreachable: the agent does not answer, and whether the session has ended is
                not known here.
        """
        row = owners.row_of(self._sessions, placement)
        key = row.key
        if placement.checked:
            # A restarted Hub stops a server only because it found it frozen: nobody
            # asked for that stop, so the capture is finished.
            await self._questions.moved(
                key, lambda row: row.phase is not Phase.SUSPENDING
            )
        with suppress(Unreachable):
            await self._questions.call_off(key)
        row = self._sessions.row(key)
        mine = row.incarnation == placement.incarnation
        if mine and row.stop_asked is not None and row.phase in LIVE:
            await self._save_first(key)
            if self._sessions.row(key).phase in LIVE:
                # Nobody but us has asked for the end of what is not saved.
                raise Refused(Reason.OPERATION_IN_FLIGHT, operation="suspend")
        ids = placement.incarnation, placement.session
        names = set() if mine else await owners.names_of(self._agent, *ids)
        if names and key not in names:  # it is its user's, of before a new name
            return StopPlan(action="keep")
        answer = await self._questions.answer(key, Want.STOP, placement)
        match answer.action.kind:
            case ActionKind.REFUSE if answer.action.failure is not None:
                raise codec.error_of(answer.action.failure, Refused)
            case ActionKind.SAVED:
                return self._release_plan(key)
            case ActionKind.KEEP:
                self._sessions.look(key)
                return StopPlan(action="keep")
        return StopPlan(action="stop")

    def _release_plan(self, key: SessionKey) -> StopPlan:
        row = self._sessions.row(key)
        suspension = self._sessions.suspension(row)
        return StopPlan(
            action="release", checkpoint=row.checkpoint, suspension=suspension
        )

    async def _save_first(self, key: SessionKey) -> None:
        """Capture once more: it runs again, and the Hub cannot be stopped (trap T8)."""
        self._sessions.update(key, intent=Intent.SUSPEND, intent_by=SERVICE)
        self._sessions.look(key)
        await self._sessions.until(
            key,
            lambda row: (
                row.phase is not Phase.SUSPENDING and row.intent is not Intent.SUSPEND
            ),
            self._sessions.settings.settle_limit,
        )

    async def release(self, placement: Placement) -> None:
        """End the saved tree; returns when it is dead. Idempotent.

        Raises:
            Refused: ``not_captured``: that incarnation is not saved.
        """
        row = owners.row_of(self._sessions, placement)
        if row.incarnation != placement.incarnation or row.phase not in SAVED:
            raise Refused(Reason.NOT_CAPTURED)
        try:
            release = orders.Release(row.checkpoint)
            await self._agent.order(row.incarnation, release)
        finally:
            self._sessions.look(row.key)

    async def stopped(self, placement: Placement) -> None:
        """Note a real stop. A suspended session stays suspended (trap T9)."""
        row = owners.row_of(self._sessions, placement)
        if row.incarnation == placement.incarnation:
            back = self._sessions.has_come_back(row.key)
            if row.phase is Phase.RESUMING and back:
                row = self._resumer.restored(row)
            if row.phase in {*LIVE, Phase.SUSPENDING}:
                self._note_stop(row, placement)
            elif row.phase is Phase.RESUMING:
                self._sessions.apply(row.key, SessionEvent.STOPPED)
        self._sessions.look(row.key)

    def _note_stop(self, row: SessionRow, placement: Placement) -> None:
        """Note a real stop; a checkpoint still kept from the return is set aside."""
        aside: list[CheckpointRow] = []
        if placement.failure is None and not placement.culled:  # a person's word
            aside = expiry.aside(self._sessions, row.checkpoint)
        changes: dict[str, Any] = {
            "checkpoints": aside,
            "bring_back": "",
            "checkpoint": "",
        }
        if placement.failure is not None:
            ended = placement.failure
            ending.vanished(self._sessions, self._agent, row, ended, **changes)
            return
        by = placement.by or of_user(row.key.user)
        why = self._note_culler(by) if placement.culled else None
        self._sessions.apply(row.key, SessionEvent.STOPPED, by=by, why=why, **changes)

    async def forget(self, deletion: Deletion) -> None:
        """Delete everything that is left of a deleted server. Idempotent."""
        key = deletion.key
        if deletion.kept_from:
            self._keep_for_a_while(key, deletion.kept_from)
            return
        self._deletions.take(deletion)
        with suppress(ReclaimError):
            await self._deletions.carry_out(key)
        self._sessions.look(key)

    def _note_culler(self, by: str) -> Decision:
        now = self._sessions.clock.now()
        self._sessions.journal.write(*notes.note(NoteKind.CULLER, by, now))
        code, told = Reason.CULLED.value, Reason.CULLED.sentence(by=by)
        return Decision(reclaim=False, code=code, message=told)

    def lately_culled(self) -> list[str]:
        now = self._sessions.clock.now()
        found = notes.read_all(self._sessions.journal, NoteKind.CULLER)
        return [
            f"{name} ends sessions for being idle, the last"
            f" {duration(max(now - at, 0.0))} ago; nothing of them was saved."
            for name, at in sorted(found.items())
            if now - at < _LATELY
        ]

    def _keep_for_a_while(self, key: SessionKey, program: str) -> None:
        row, seconds = self._sessions.row(key), self._sessions.settings.set_aside
        if not row.since:
            return
        kept, claimed = [], row.claimed
        if row.phase is Phase.SUSPENDED:  # whoever has the name next wants it
            until = self._sessions.clock.now() + seconds
            current = self._sessions.journal.checkpoint(row.checkpoint)
            kept = [current.kept(Keeping.CURRENT, until)] if current else []
            claimed = True
        line = self._sessions.audit_line(key, program, "user deleted")
        self._sessions.update(key, line, checkpoints=kept, claimed=claimed)
        self._sessions.look(key)

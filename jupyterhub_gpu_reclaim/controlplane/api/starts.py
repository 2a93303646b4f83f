"""Start planner: cold, restore, adopt or refuse; then placed, followed or cancelled.

``loop/reconciler.py`` decides, its answer is translated here. The restore
itself is ordered by the worker (``flows/resume.py``).

An administrator may order that a session's login be made valid again: its token is in
its memory, and the Hub does not know it any more, because it was revoked or because the
Hub's database is another one. An order is for one session and one return, and holds for
a day.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common import codec, text
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, Unreachable
from jupyterhub_gpu_reclaim.common.models import (
    Event,
    Phase,
    Placement,
    SessionKey,
    StartPlan,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import retention
from jupyterhub_gpu_reclaim.controlplane.flows import ending, taking
from jupyterhub_gpu_reclaim.controlplane.journal import notes
from jupyterhub_gpu_reclaim.controlplane.journal.notes import NoteKind
from jupyterhub_gpu_reclaim.controlplane.model.actions import (
    ActionKind,
    Want,
    failure_of,
)
from jupyterhub_gpu_reclaim.controlplane.model.phases import (
    LIVE,
    NO_ORDER,
    SessionEvent,
)
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent, SessionRow
from jupyterhub_gpu_reclaim.controlplane.sessions import owners

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.models import Failure, Identity, Tree
    from jupyterhub_gpu_reclaim.controlplane.api.questions import Answer, Questions
    from jupyterhub_gpu_reclaim.controlplane.checkpoints.deletions import Deletions
    from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
    from jupyterhub_gpu_reclaim.controlplane.flows.resume import Resumer
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions


_log = logging.getLogger(__name__)

#: Most attempts to make a plan while the session moves.
_ATTEMPTS = 5


class StartPlanner:
    def __init__(
        self,
        *,
        sessions: Sessions,
        agent: Agent,
        deletions: Deletions,
        questions: Questions,
        resumer: Resumer,
        together: Together,
    ) -> None:
        self._sessions = sessions
        self._agent = agent
        self._deletions = deletions
        self._questions = questions
        self._resumer = resumer
        self._together = together

    async def plan(self, placement: Placement) -> StartPlan:
        """Plan how to start a session; ``placement.incarnation`` is the new one.

        Never ``cold`` while a checkpoint is known. A capture under way is cancelled
        (answer ``adopt``) or, once committed, finished (answer ``restore``). If no plan
        can be made, the answer is ``refuse`` with its reason; nothing is raised.
        Idempotent for the same incarnation.
        """
        key = placement.key
        try:
            self._deletions.take_up()
            # The check may give it a former one's.
            owned = self._sessions.row(key).account == placement.owner != ""
            owners.check(self._sessions, placement)
            await self._questions.call_off(key)
            for _ in range(_ATTEMPTS):
                answer = await self._questions.answer(key, Want.START, placement)
                # More may have been found.
                owners.check(self._sessions, placement)
                plan = await self._plan(answer, placement)
                if plan is not None:
                    _log.info("%s: start %s", key, plan.action)
                    if plan.action == "refuse":
                        return plan
                    owners.note(self._sessions, placement)
                    renews = self._renews_login(key, plan.action)
                    return msgspec.structs.replace(
                        plan, owned=owned, renew_login=renews
                    )
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="suspend")
        except ReclaimError as error:
            _log.info("%s: start refused: %s", key, error)
            failure = codec.failure_of(error)
            with suppress(ReclaimError):  # the journal says so itself
                self._tell_why(key, failure)
            return StartPlan(action="refuse", failure=failure)
        finally:
            self._sessions.look(key)

    def _renews_login(self, key: SessionKey, action: str) -> bool:
        if action == "cold" or not renewal_ordered(self._sessions, key):
            return False
        if action == "adopt":  # for a restore, the place is reported
            end_renewal(self._sessions, key)
        return True

    async def _plan(self, answer: Answer, placement: Placement) -> StartPlan | None:
        """Translate the answer into a plan; None: ask again."""
        action, row = answer.action, answer.row
        if self._sessions.row(row.key) != row:
            return None
        begins = action.kind in {ActionKind.COLD, ActionKind.RETURN}
        if begins and row.phase is not Phase.RESUMING:
            self._check_open()
        match action.kind:
            case ActionKind.COLD:
                await owners.check_names(self._sessions, self._agent, placement)
                moved = self._sessions.row(row.key) != row
                return None if moved else StartPlan(action="cold")
            case ActionKind.JOIN if action.tree is not None:
                return await self._adopt_running(answer, action.tree, placement)
            case ActionKind.RETURN if row.phase is Phase.RESUMING:
                return self._restore(row, await self._agent.identity(row.checkpoint))
            case ActionKind.RETURN:
                return await self._begin_restore(answer, placement)
            case ActionKind.MISSING:
                await owners.check_names(self._sessions, self._agent, placement)
                if self._sessions.row(row.key) == row:  # its user has to choose
                    gone = placement.checkpoint
                    failure = failure_of(Reason.CHECKPOINT_MISSING, checkpoint=gone)
                    self._sessions.apply(
                        row.key,
                        SessionEvent.FOUND_SAVED,
                        failure=failure,
                        checkpoint=gone,
                    )
                return None
            case ActionKind.ASK:
                # What was said before the question is no answer to it.
                self._sessions.update(row.key, failure=action.failure, **NO_ORDER)
        return StartPlan(action="refuse", failure=action.failure)

    def _tell_why(self, key: SessionKey, failure: Failure) -> None:
        """Tell it whoever has asked: the Hub only says that it was refused."""
        if self._sessions.row(key).intent is Intent.RESUME:
            self._sessions.update(key, failure=failure, **NO_ORDER)

    def _check_open(self) -> None:
        """Refuse a start on a drained machine; a cluster places pods elsewhere."""
        drain = self._sessions.drains.of("")
        if drain is not None:
            raise Refused(Reason.NODE_CLOSED, since=text.moment(drain.since))

    async def _begin_restore(
        self, answer: Answer, placement: Placement
    ) -> StartPlan | None:
        key, row = answer.row.key, answer.row
        try:
            identity = await self._agent.identity(row.checkpoint)
        except Unreachable:
            raise
        except ReclaimError as error:
            self._sessions.update(key, failure=codec.failure_of(error))
            raise
        if self._sessions.row(key) != row:
            return None
        self._sessions.tab_keys.comes_back(key, identity)
        self._together.come_back(row)
        self._sessions.begin(key, "resume")
        row = self._sessions.apply(
            key,
            SessionEvent.RESTORE,
            session=row.session or placement.session,
            incarnation=placement.incarnation,
        )
        return self._restore(row, identity)

    def _restore(self, row: SessionRow, identity: Identity) -> StartPlan:
        return StartPlan(
            action="restore",
            checkpoint=row.checkpoint,
            generation=row.generation,
            identity=identity,
            suspension=self._sessions.suspension(row),
            session=row.session,
        )

    async def _adopt_running(
        self, answer: Answer, tree: Tree, placement: Placement
    ) -> StartPlan | None:
        """Adopt the session that runs, unless its end was ordered.

        Raises:
            Refused: its pod is being deleted, or the session is another account's.
        """
        row = answer.row
        if tree.ending:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="stop")
        if ending.is_ordered(self._sessions, tree.key, tree.incarnation):
            await ending.end(self._sessions, self._agent, tree.key, tree.incarnation)
            return None
        if not renewal_ordered(self._sessions, row.key):
            owners.refuse_anothers(self._sessions, tree, placement)
        known = row.phase in {*LIVE, Phase.RESUMING}
        if not known or tree.incarnation != row.incarnation:
            taking.running(self._sessions, row, tree, answer.observed)
        else:
            self._note_answered(row)
        return StartPlan(
            action="adopt", incarnation=tree.incarnation, session=tree.session
        )

    def _note_answered(self, row: SessionRow) -> None:
        """Note that the Hub has it: its parent has its time, a refusal is over."""
        changes: dict[str, Any] = {}
        current = self._sessions.journal.checkpoint(row.checkpoint)
        if retention.is_unanswered(row, current):
            changes["resumed_at"] = self._sessions.clock.now()
        if row.failure is not None and row.failure.code == Reason.NOT_ADOPTED.value:
            changes["failure"] = None
        if changes:
            self._sessions.update(row.key, **changes)

    # --- after the plan
    async def placed(self, placement: Placement) -> None:
        """Note that an init holds a place, or that a cold session runs; idempotent.

        Raises:
            Refused: ``wrong_phase``: that restore is not, or no longer, under way.
        """
        key, sessions = placement.key, self._sessions
        self._deletions.take_up()  # if the start was planned without this service
        row = sessions.row(key)
        if row.phase is Phase.RESUMING and row.incarnation == placement.incarnation:
            sessions.update(key, placed=True)
            end_renewal(sessions, key)  # the spawner has seen to it by now
        elif placement.checkpoint:
            raise Refused(Reason.WRONG_PHASE, phase=row.phase.value, action="be placed")
        else:
            sessions.tab_keys.begun(key, placement.tab_key)
            self._note_cold_start(row, placement)
            owners.note(sessions, placement)
        self._sessions.look(key)

    def _note_cold_start(self, row: SessionRow, placement: Placement) -> None:
        if row.incarnation == placement.incarnation:
            return  # it was found before; whatever has become of it since is newer
        stopped = row.phase in {*LIVE, Phase.STOPPED}
        self._sessions.apply(
            row.key,
            SessionEvent.STARTED if stopped else SessionEvent.FOUND_RUNNING,
            session=placement.session,
            incarnation=placement.incarnation,
            checkpoint="",
            started_at=self._sessions.clock.now(),
            resumed_at=None,
        )

    async def progress(self, key: SessionKey, after: int = 0) -> AsyncIterator[Event]:
        """Events of the restore under way from number ``after`` on, until its end."""
        operation = self._sessions.operation(key)
        row = self._sessions.row(key)
        if operation is not None and operation.kind != "resume":
            operation = None
        if row.phase is Phase.RESUMING and operation is None:
            operation = self._sessions.begin(key, "resume")
        if operation is not None and (row.phase is Phase.RESUMING or operation.ended):
            async for event in operation.read(after):
                yield event
            return
        tree = await self._unknown_return(row)
        if tree is None and row.phase in LIVE:
            tree = await self._agent.tree(row.incarnation)
        if tree is None:
            yield Event(failure=row.failure or failure_of(Reason.CANCELLED))
        elif tree.state is not TreeState.RESTORING:  # else it is asked again
            yield Event(tree=tree)

    async def _unknown_return(self, row: SessionRow) -> Tree | None:
        """Return what comes back, or is back, though the journal does not know of it.

        It may be all that there is, if the store was put back with the journal.
        """
        for tree in await self._agent.trees(row.key):
            back = tree.runs or tree.state is TreeState.RESTORING
            ordered = ending.is_ordered(self._sessions, row.key, tree.incarnation)
            if back and tree.incarnation != row.incarnation and not ordered:
                return tree
        return None

    async def login_revoked(self, placement: Placement) -> None:
        """Note that a running server's login was revoked: so is the key of its tabs."""
        if self._sessions.row(placement.key).incarnation == placement.incarnation:
            self._sessions.tab_keys.revoke(placement.key)

    async def cancelled(self, placement: Placement) -> None:
        """Cancel a start: end what was placed, keep the checkpoint."""
        row = self._sessions.row(placement.key)
        failure = placement.failure
        if failure is not None and failure.code == Reason.TOKEN_REVOKED.value:
            self._sessions.tab_keys.revoke(placement.key)
        if row.incarnation == placement.incarnation:
            self._cancel(row, placement)
        with suppress(Unreachable, Refused):
            await ending.end(
                self._sessions, self._agent, placement.key, placement.incarnation
            )
        self._sessions.look(placement.key)

    def _cancel(self, row: SessionRow, placement: Placement) -> None:
        sessions = self._sessions
        if row.phase is Phase.RESUMING:
            operation = sessions.operation(row.key)
            failed = operation is not None and operation.ended
            self._resumer.failed(row, row.failure if failed else placement.failure)
        elif row.phase in LIVE and row.checkpoint == placement.checkpoint != "":
            # It ran for a moment and never answered the Hub.
            sessions.apply(row.key, SessionEvent.LOST)
        elif row.phase in LIVE:
            sessions.apply(row.key, SessionEvent.STOPPED, checkpoint="")


#: Seconds for which an order holds.
RENEWAL_SECONDS = 86400.0


def order_renewal(sessions: Sessions, key: SessionKey, by: str) -> None:
    until = sessions.clock.now() + RENEWAL_SECONDS
    sessions.journal.write(*notes.note(NoteKind.LOGIN_RENEWAL, key.path, until))
    sessions.update(key, sessions.audit_line(key, by, "renew login"))


def renewal_ordered(sessions: Sessions, key: SessionKey) -> bool:
    until = notes.read(sessions.journal, NoteKind.LOGIN_RENEWAL, key.path)
    return until is not None and sessions.clock.now() < until


def end_renewal(sessions: Sessions, key: SessionKey) -> None:
    if notes.read(sessions.journal, NoteKind.LOGIN_RENEWAL, key.path) is not None:
        sessions.journal.write(*notes.forget(NoteKind.LOGIN_RENEWAL, key.path))

"""Answers the Hub's spawner: how a session starts, and whether it may be ended.

``settle.py`` decides; what must come first is done here, and its answer is translated.
A worker may be at the same session, so each answer is computed from the journal as it
is after the last ``await``, and acted on at once. A stop by a person stays a real stop;
one that the service asked for releases the captured tree.

An administrator may order that a session's login be made valid again: its token is in
its memory, and the Hub does not know it any more. An order is for one return, and holds
for a day.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec, text
from jupyterhub_gpu_reclaim.common.auth.principals import of_user
from jupyterhub_gpu_reclaim.common.errors import (
    ReclaimError,
    Refused,
    StoreError,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Event,
    HubState,
    Phase,
    Placement,
    SessionKey,
    StartPlan,
    StopPlan,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane import operations, owners, retention, taking
from jupyterhub_gpu_reclaim.controlplane.observer import in_order
from jupyterhub_gpu_reclaim.controlplane.phase import Observed
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import (
    LIVE,
    NO_ORDER,
    SAVED,
    Intent,
    Keeping,
    SessionEvent,
    SessionRow,
    failure_of,
)
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE
from jupyterhub_gpu_reclaim.controlplane.settle import (
    Action,
    ActionKind,
    AnswerKind,
    Asked,
    Want,
    settle,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
    from jupyterhub_gpu_reclaim.common.models import Identity, Tree
    from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
    from jupyterhub_gpu_reclaim.controlplane.deletions import Deletions
    from jupyterhub_gpu_reclaim.controlplane.observer import Observer
    from jupyterhub_gpu_reclaim.controlplane.resume import Resumer
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
    from jupyterhub_gpu_reclaim.controlplane.worker import Worker


_log = logging.getLogger(__name__)

#: Most looks at a session that moves, or for which something was done first.
_LOOKS = 12
#: Most attempts to make a plan while the session moves.
_ATTEMPTS = 5
#: Seconds for which an order to renew a login holds.
RENEWAL_SECONDS = 86400.0
#: Seconds for which it is told that somebody ends sessions for being idle.
_LATELY = 86400.0


class Answer(NamedTuple):
    action: Action
    row: SessionRow
    observed: Observed


@dataclass(eq=False)
class Planner:
    sessions: Sessions
    observer: Observer
    deletions: Deletions
    resumer: Resumer
    together: Together
    worker: Worker

    # --- questions
    async def call_off(self, key: SessionKey) -> None:
        row = self.sessions.row(key)
        if row.phase is not Phase.SUSPENDING:
            return
        await operations.call_off(self.sessions, row)
        self.sessions.look(key)
        await self.moved(key, lambda now: now.phase is not Phase.SUSPENDING)

    async def moved(self, key: SessionKey, so: Callable[[SessionRow], bool]) -> bool:
        return await self.sessions.until(key, so, self.sessions.settings.settle_limit)

    async def _moved_on(self, row: SessionRow) -> bool:
        return await self.moved(row.key, lambda now: now != row)

    async def answer(self, key: SessionKey, want: Want, placement: Placement) -> Answer:
        """Return the answer, after doing everything that must come before it.

        Raises:
            ReclaimError: a part that is needed does not answer, or the session moves.
        """
        for _ in range(_LOOKS):
            row = self.sessions.row(key)
            asked = Asked(
                want=want,
                incarnation=placement.incarnation,
                checkpoint=placement.checkpoint,
                stamp=(placement.term, placement.generation),
                former=placement.former,
                remembered=placement.remembered,
                listed=self.observer.is_listed(key),
                came_back=self.sessions.has_come_back(key),
            )
            answer, silence = await self._ask_reconciler(row, asked)
            if self.sessions.row(key) != row:
                continue
            if isinstance(answer.action.kind, AnswerKind):
                return answer
            if answer.action.kind is ActionKind.UNANSWERED and silence is not None:
                raise silence
            if answer.action.kind is ActionKind.WAIT:
                if not await self._moved_on(row):
                    break
                continue
            await self.act(answer, placement)
        raise Refused(Reason.OPERATION_IN_FLIGHT, operation="suspend")

    async def _ask_reconciler(
        self, row: SessionRow, asked: Asked
    ) -> tuple[Answer, ReclaimError | None]:
        """Ask the reconciler, with as few questions to others as it needs."""
        agent, observed = self.sessions.agent, Observed(None, None, None)
        silence: ReclaimError | None = None
        answer = self._settle(row, observed, asked)
        for part in ("trees", "checkpoints"):
            if answer.action.kind is not ActionKind.UNANSWERED:
                break
            try:
                if part == "trees":
                    trees = await agent.trees(row.key)
                    observed = observed._replace(trees=tuple(trees))
                else:
                    saved = await agent.checkpoints(row.key)
                    observed = observed._replace(saved=in_order(saved))
            except (Unreachable, StoreError) as error:
                # The first is told: it is why the second was of no use.
                silence = silence or error
            if silence is not None and part == "checkpoints":
                asked = asked._replace(silence=silence.reason)
            answer = self._settle(row, observed, asked)
        return answer, silence

    def _settle(self, row: SessionRow, observed: Observed, asked: Asked) -> Answer:
        observed = observed._replace(hub=HubState.SPAWNING)
        observed = self.observer.whole(row.key, observed)
        asked = asked._replace(kept=tuple(self.sessions.journal.checkpoints(row.key)))
        now = self.sessions.clock.now()
        action = settle(row, observed, now, self.sessions.settings, asked)
        return Answer(action, row, observed)

    async def act(self, answer: Answer, placement: Placement) -> None:
        row, action = answer.row, answer.action
        hubs = {placement.former, placement.checkpoint}
        # Of a start these are new, and nothing is saved under them.
        hubs |= {placement.session, placement.incarnation}
        try:
            await self.worker.act(row, action, answer.observed, hubs)
        except Refused as error:
            # A worker may have been told before us that it goes on; it notes that.
            if error.reason is not Reason.NOT_CAPTURED:
                raise
            self.sessions.look(row.key)
            if not await self._moved_on(row):
                raise

    # --- starts
    async def plan_start(self, placement: Placement) -> StartPlan:
        """Plan how to start a session; ``placement.incarnation`` is the new one.

        Never ``cold`` while a checkpoint is known. A capture under way is cancelled
        (answer ``adopt``) or, once committed, finished (answer ``restore``). If no plan
        can be made, the answer is ``refuse`` with its reason; nothing is raised.
        Idempotent for the same incarnation.
        """
        key = placement.key
        try:
            self.deletions.take_up()
            # The check may give it a former one's.
            owned = self.sessions.row(key).account == placement.owner != ""
            owners.check(self.sessions, placement)
            await self.call_off(key)
            for _ in range(_ATTEMPTS):
                answer = await self.answer(key, Want.START, placement)
                # More may have been found.
                owners.check(self.sessions, placement)
                plan = await self._plan(answer, placement)
                if plan is not None:
                    _log.info("%s: start %s", key, plan.action)
                    if plan.action == "refuse":
                        return plan
                    owners.note(self.sessions, placement)
                    renews = self._renews_login(key, plan.action)
                    return msgspec.structs.replace(
                        plan, owned=owned, renew_login=renews
                    )
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="suspend")
        except ReclaimError as error:
            _log.info("%s: start refused: %s", key, error)
            failure = codec.failure_of(error)
            if self.sessions.row(key).intent is Intent.RESUME:
                # Who asked is told why: the Hub only says that it was refused.
                with suppress(ReclaimError):  # the journal says so itself
                    self.sessions.update(key, failure=failure, **NO_ORDER)
            return StartPlan(action="refuse", failure=failure)
        finally:
            self.sessions.look(key)

    def _renews_login(self, key: SessionKey, action: str) -> bool:
        if action == "cold" or not renewal_ordered(self.sessions, key):
            return False
        if action == "adopt":  # for a restore, the place is reported
            end_renewal(self.sessions, key)
        return True

    async def _plan(self, answer: Answer, placement: Placement) -> StartPlan | None:
        action, row = answer.action, answer.row
        if self.sessions.row(row.key) != row:
            return None
        begins = action.kind in {AnswerKind.COLD, AnswerKind.RETURN}
        if begins and row.phase is not Phase.RESUMING:
            self._check_open()
        match action.kind:
            case AnswerKind.COLD:
                await owners.check_names(self.sessions, placement)
                moved = self.sessions.row(row.key) != row
                return None if moved else StartPlan(action="cold")
            case AnswerKind.JOIN if action.tree is not None:
                return await self._adopt_running(answer, action.tree, placement)
            case AnswerKind.RETURN if row.phase is Phase.RESUMING:
                return self._restore(
                    row, await self.sessions.agent.identity(row.checkpoint)
                )
            case AnswerKind.RETURN:
                return await self._begin_restore(answer, placement)
            case AnswerKind.MISSING:
                await owners.check_names(self.sessions, placement)
                if self.sessions.row(row.key) == row:  # its user has to choose
                    gone = placement.checkpoint
                    failure = failure_of(Reason.CHECKPOINT_MISSING, checkpoint=gone)
                    self.sessions.apply(
                        row.key,
                        SessionEvent.FOUND_SAVED,
                        failure=failure,
                        checkpoint=gone,
                    )
                return None
            case AnswerKind.ASK:
                # What was said before the question is no answer to it.
                self.sessions.update(row.key, failure=action.failure, **NO_ORDER)
        return StartPlan(action="refuse", failure=action.failure)

    def _check_open(self) -> None:
        """Refuse a start on a drained machine; a cluster places pods elsewhere."""
        drain = self.sessions.drains.of("")
        if drain is not None:
            raise Refused(Reason.NODE_CLOSED, since=text.moment(drain.since))

    async def _begin_restore(
        self, answer: Answer, placement: Placement
    ) -> StartPlan | None:
        key, row = answer.row.key, answer.row
        try:
            identity = await self.sessions.agent.identity(row.checkpoint)
        except Unreachable:
            raise
        except ReclaimError as error:
            self.sessions.update(key, failure=codec.failure_of(error))
            raise
        if self.sessions.row(key) != row:
            return None
        self.together.come_back(row)
        self.sessions.begin(key, "resume")
        row = self.sessions.apply(
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
            identity=identity,
            suspension=self.sessions.suspension(row),
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
        if taking.is_ordered(self.sessions, tree.key, tree.incarnation):
            await taking.end(self.sessions, tree.key, tree.incarnation)
            return None
        if not renewal_ordered(self.sessions, row.key):
            owners.refuse_anothers(self.sessions, tree, placement)
        known = row.phase in {*LIVE, Phase.RESUMING}
        if not known or tree.incarnation != row.incarnation:
            taking.running(self.sessions, row, tree, answer.observed)
        else:
            self._note_answered(row)
        return StartPlan(
            action="adopt", incarnation=tree.incarnation, session=tree.session
        )

    def _note_answered(self, row: SessionRow) -> None:
        """Note that the Hub has it: its parent has its time, a refusal is over."""
        changes: dict[str, Any] = {}
        current = self.sessions.journal.checkpoint(row.checkpoint)
        if retention.is_unanswered(row, current):
            changes["resumed_at"] = self.sessions.clock.now()
        if row.tells(Reason.NOT_ADOPTED):
            changes["failure"] = None
        if changes:
            self.sessions.update(row.key, **changes)

    # --- after the plan
    async def placed(self, placement: Placement) -> None:
        """Note that an init holds a place, or that a cold session runs; idempotent.

        Raises:
            Refused: ``wrong_phase``: that restore is not, or no longer, under way.
        """
        key, sessions = placement.key, self.sessions
        self.deletions.take_up()  # if the start was planned without this service
        row = sessions.row(key)
        if row.phase is Phase.RESUMING and row.incarnation == placement.incarnation:
            sessions.update(key, placed=True)
            end_renewal(sessions, key)  # the spawner has seen to it by now
        elif placement.checkpoint:
            raise Refused(Reason.WRONG_PHASE, phase=row.phase.value, action="be placed")
        else:
            self._note_cold_start(row, placement)
            owners.note(sessions, placement)
        self.sessions.look(key)

    def _note_cold_start(self, row: SessionRow, placement: Placement) -> None:
        if row.incarnation == placement.incarnation:
            return  # it was found before; whatever has become of it since is newer
        stopped = row.phase in {*LIVE, Phase.STOPPED}
        self.sessions.apply(
            row.key,
            SessionEvent.STARTED if stopped else SessionEvent.FOUND_RUNNING,
            session=placement.session,
            incarnation=placement.incarnation,
            checkpoint="",
            started_at=self.sessions.clock.now(),
            resumed_at=None,
        )

    async def progress(self, key: SessionKey) -> AsyncIterator[Event]:
        """Events of the restore under way, from its begin to its end."""
        operation = self.sessions.operation(key)
        row = self.sessions.row(key)
        if operation is not None and operation.kind != "resume":
            operation = None
        if row.phase is Phase.RESUMING and operation is None:
            operation = self.sessions.begin(key, "resume")
        if operation is not None and (row.phase is Phase.RESUMING or operation.ended):
            async for event in operation.read():
                yield event
            return
        tree = await self._unknown_return(row)
        if tree is None and row.phase in LIVE:
            tree = await self.sessions.agent.tree(row.incarnation)
        if tree is None:
            yield Event(failure=row.failure or failure_of(Reason.CANCELLED))
        elif tree.state is not TreeState.RESTORING:  # else it is asked again
            yield Event(tree=tree)

    async def _unknown_return(self, row: SessionRow) -> Tree | None:
        """Return what comes back, or is back, though the journal does not know of it.

        It may be all that there is, if the store was put back with the journal.
        """
        for tree in await self.sessions.agent.trees(row.key):
            back = tree.runs or tree.state is TreeState.RESTORING
            ordered = taking.is_ordered(self.sessions, row.key, tree.incarnation)
            if back and tree.incarnation != row.incarnation and not ordered:
                return tree
        return None

    async def login_revoked(self, placement: Placement) -> None:
        """Note that a running server's login was revoked: so is the key of its tabs."""
        row = self.sessions.row(placement.key)
        if row.incarnation == placement.incarnation:
            self.sessions.revoke_tabs(row)

    async def cancelled(self, placement: Placement) -> None:
        row = self.sessions.row(placement.key)
        failure = placement.failure
        revoked = failure is not None and failure.code == Reason.TOKEN_REVOKED.value
        if revoked and row.since:
            self.sessions.revoke_tabs(row)
        if row.incarnation == placement.incarnation:
            self._cancel(row, placement)
        with suppress(Unreachable, Refused):
            await taking.end(self.sessions, placement.key, placement.incarnation)
        self.sessions.look(placement.key)

    def _cancel(self, row: SessionRow, placement: Placement) -> None:
        sessions = self.sessions
        if row.phase is Phase.RESUMING:
            operation = sessions.operation(row.key)
            failed = operation is not None and operation.ended
            self.resumer.failed(row, row.failure if failed else placement.failure)
        elif row.phase in LIVE and row.checkpoint == placement.checkpoint != "":
            # It ran for a moment and never answered the Hub.
            sessions.apply(row.key, SessionEvent.LOST)
        elif row.phase in LIVE:
            sessions.apply(row.key, SessionEvent.STOPPED, checkpoint="")

    # --- stops
    async def plan_stop(self, placement: Placement) -> StopPlan:
        """Answer ``release`` if that incarnation is (now) suspended, else ``stop``.

        A capture under way is cancelled or finished first. Idempotent.

        Raises:
            Refused: ``operation_in_flight``: neither was possible; end nothing now.
            StoreError: it has ended, and what may come back is not known.
            Unreachable: the agent does not answer, and whether the session has ended is
                not known here.
        """
        row = owners.row_of(self.sessions, placement)
        key = row.key
        if placement.checked:
            # A restarted Hub stops a server only because it found it frozen: nobody
            # asked for that stop, so the capture is finished.
            await self.moved(key, lambda row: row.phase is not Phase.SUSPENDING)
        with suppress(Unreachable):
            await self.call_off(key)
        row = self.sessions.row(key)
        mine = row.incarnation == placement.incarnation
        if mine and row.stop_asked is not None and row.phase in LIVE:
            await self._save_first(key)
            if self.sessions.row(key).phase in LIVE:
                # Nobody but us has asked for the end of what is not saved.
                raise Refused(Reason.OPERATION_IN_FLIGHT, operation="suspend")
        ids = placement.incarnation, placement.session
        names = set() if mine else await owners.names_of(self.sessions, *ids)
        if names and key not in names:  # it is its user's, of before a new name
            return StopPlan(action="keep")
        answer = await self.answer(key, Want.STOP, placement)
        match answer.action.kind:
            case AnswerKind.REFUSE if answer.action.failure is not None:
                raise codec.error_of(answer.action.failure, Refused)
            case AnswerKind.SAVED:
                row = self.sessions.row(key)
                return StopPlan(
                    action="release",
                    checkpoint=row.checkpoint,
                    suspension=self.sessions.suspension(row),
                )
            case AnswerKind.KEEP:
                self.sessions.look(key)
                return StopPlan(action="keep")
        return StopPlan(action="stop")

    async def _save_first(self, key: SessionKey) -> None:
        """Capture once more: it runs again, and the Hub cannot be stopped (trap T8)."""
        self.sessions.update(key, intent=Intent.SUSPEND, intent_by=SERVICE)
        self.sessions.look(key)
        await self.moved(
            key,
            lambda row: (
                row.phase is not Phase.SUSPENDING and row.intent is not Intent.SUSPEND
            ),
        )

    async def release(self, placement: Placement) -> None:
        """End the saved tree; returns when it is dead. Idempotent.

        Raises:
            Refused: ``not_captured``: that incarnation is not saved.
        """
        row = owners.row_of(self.sessions, placement)
        if row.incarnation != placement.incarnation or row.phase not in SAVED:
            raise Refused(Reason.NOT_CAPTURED)
        try:
            release = orders.Release(row.checkpoint)
            await self.sessions.agent.order(row.incarnation, release)
        finally:
            self.sessions.look(row.key)

    async def stopped(self, placement: Placement) -> None:
        """Note a real stop. A suspended session stays suspended (trap T9)."""
        row = owners.row_of(self.sessions, placement)
        if row.incarnation == placement.incarnation:
            back = self.sessions.has_come_back(row.key)
            if row.phase is Phase.RESUMING and back:
                row = self.resumer.restored(row)
            if row.phase in {*LIVE, Phase.SUSPENDING}:
                self._note_stop(row, placement)
            elif row.phase is Phase.RESUMING:
                self.sessions.apply(row.key, SessionEvent.STOPPED)
        self.sessions.look(row.key)

    def _note_stop(self, row: SessionRow, placement: Placement) -> None:
        left = self.sessions.journal.checkpoint(row.checkpoint)
        by_person = placement.failure is None and not placement.culled
        changes: dict[str, Any] = {
            "checkpoints": [self.sessions.aside(left)] if left and by_person else [],
            "bring_back": "",
            "checkpoint": "",
        }
        if placement.failure is not None:
            ended = placement.failure
            taking.vanished(self.sessions, row, ended, **changes)
            return
        by = placement.by or of_user(row.key.user)
        why = self._note_culler(by) if placement.culled else None
        self.sessions.apply(row.key, SessionEvent.STOPPED, by=by, why=why, **changes)

    async def forget(self, deletion: Deletion) -> None:
        key = deletion.key
        if deletion.kept_from:
            self._keep_for_a_while(key, deletion.kept_from)
            return
        self.deletions.take(deletion)
        with suppress(ReclaimError):
            await self.deletions.carry_out(key)
        self.sessions.look(key)

    def _note_culler(self, by: str) -> Decision:
        now = self.sessions.clock.now()
        self.sessions.journal.note(NoteKind.CULLER, by, now)
        code, told = Reason.CULLED.value, Reason.CULLED.sentence(by=by)
        return Decision(reclaim=False, code=code, message=told)

    def lately_culled(self) -> list[str]:
        now = self.sessions.clock.now()
        found = self.sessions.journal.notes(NoteKind.CULLER, float)
        return [
            f"{name} ends sessions for being idle, the last"
            f" {duration(max(now - at, 0.0))} ago; nothing of them was saved."
            for name, at in sorted(found.items())
            if now - at < _LATELY
        ]

    def _keep_for_a_while(self, key: SessionKey, program: str) -> None:
        row, seconds = self.sessions.row(key), self.sessions.settings.set_aside
        if not row.since:
            return
        kept, claimed = [], row.claimed
        if row.phase is Phase.SUSPENDED:  # whoever has the name next wants it
            until = self.sessions.clock.now() + seconds
            current = self.sessions.journal.checkpoint(row.checkpoint)
            kept = [current.kept(Keeping.CURRENT, until)] if current else []
            claimed = True
        line = self.sessions.audit_line(key, program, "user deleted")
        self.sessions.update(key, line, checkpoints=kept, claimed=claimed)
        self.sessions.look(key)


def order_renewal(sessions: Sessions, key: SessionKey, by: str) -> None:
    until = sessions.clock.now() + RENEWAL_SECONDS
    sessions.journal.note(NoteKind.LOGIN_RENEWAL, key.path, until)
    sessions.update(key, sessions.audit_line(key, by, "renew login"))


def renewal_ordered(sessions: Sessions, key: SessionKey) -> bool:
    until = sessions.journal.noted(NoteKind.LOGIN_RENEWAL, key.path)
    return until is not None and sessions.clock.now() < until


def end_renewal(sessions: Sessions, key: SessionKey) -> None:
    sessions.journal.forget_notes(NoteKind.LOGIN_RENEWAL, key.path)

"""Start planner: cold, restore, adopt or refuse; then placed, followed or cancelled.

A worker may be at the same session, so every answer is computed from the journal as it
is after the last ``await``, and written at once. A session with a checkpoint is never
started cold here. The restore itself is ordered by the worker (``flows/resume.py``).

An administrator may order that a session's login be made valid again: its token is in
its memory, and the Hub does not know it any more, because it was revoked or because the
Hub's database is another one. An order is for one session and one return, and holds for
a day.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    ReclaimError,
    Refused,
    StoreError,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import (
    Event,
    HubState,
    Phase,
    Placement,
    SessionKey,
    StartPlan,
    Tree,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import moment
from jupyterhub_gpu_reclaim.controlplane.checkpoints import bring_back, expiry, lineage
from jupyterhub_gpu_reclaim.controlplane.flows import adoption, ending, vanished
from jupyterhub_gpu_reclaim.controlplane.flows.suspend import failure_of
from jupyterhub_gpu_reclaim.controlplane.journal import audit_log
from jupyterhub_gpu_reclaim.controlplane.loop.reconciler import Observed
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE, SessionEvent
from jupyterhub_gpu_reclaim.controlplane.model.rows import (
    HIDDEN,
    Intent,
    Keeping,
    SessionRow,
)
from jupyterhub_gpu_reclaim.controlplane.sessions import owners

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Failure
    from jupyterhub_gpu_reclaim.controlplane.flows.resume import Resumer
    from jupyterhub_gpu_reclaim.controlplane.flows.suspend import Suspender
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions
    from jupyterhub_gpu_reclaim.controlplane.sessions.renames import Renames


_log = logging.getLogger(__name__)

#: How often a plan is made again because the session moved meanwhile.
_ATTEMPTS = 5


class StartPlanner:
    """Answers the spawner before and during a start.

    Args:
        sessions: the rows.
        agent: the agents.
        renames: knows what is there under a former name.
        suspender: ends a release that a start overtakes.
        resumer: ends restores that are no longer wanted.
        look: adds a session's key to the work queue.
        settings: the limits.
    """

    def __init__(
        self,
        *,
        sessions: Sessions,
        agent: Agent,
        renames: Renames,
        suspender: Suspender,
        resumer: Resumer,
        look: Callable[[SessionKey], None],
        settings: Settings,
    ) -> None:
        self._sessions = sessions
        self._agent = agent
        self._renames = renames
        self._suspender = suspender
        self._resumer = resumer
        self._look = look
        self._settings = settings

    async def plan(self, placement: Placement) -> StartPlan:
        """Cold, restore, adopt or refuse; see ``Controller.plan_start``."""
        key = placement.key
        try:
            self._sessions.take_up_deletions()
            if self._sessions.deletions is not None:
                self._sessions.deletions.spare(key, placement.incarnation)
            # The check may give it a former one's.
            owned = self._sessions.row(key).account == placement.owner != ""
            owners.check(self._sessions, placement, self._settings)
            await self._renames.check(placement)
            await self.call_off(key)
            for _ in range(_ATTEMPTS):
                plan = await self._plan(self._sessions.row(key), placement)
                if plan is None:
                    owners.check(self._sessions, placement, self._settings)
                else:
                    if plan.action != "refuse":
                        plan = msgspec.structs.replace(plan, owned=owned)
                        owners.note(self._sessions, placement, self._settings)
                    _log.info("%s: start %s", key, plan.action)
                    return self._with_order(key, plan)
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="suspend")
        except ReclaimError as error:
            _log.info("%s: start refused: %s", key, error)
            return StartPlan(action="refuse", failure=codec.failure_of(error))
        finally:
            self._look(key)

    def _with_order(self, key: SessionKey, plan: StartPlan) -> StartPlan:
        """The plan, and whether an old login may be made valid again."""
        if plan.action not in {"restore", "adopt"}:
            return plan
        if not renewal_ordered(self._sessions, key):
            return plan
        if plan.action == "adopt":  # for a restore, the place is reported
            end_renewal(self._sessions, key)
        return msgspec.structs.replace(plan, renew_login=True)

    async def call_off(self, key: SessionKey) -> None:
        """Cancel a capture under way; returns when it has ended either way."""
        row = self._sessions.row(key)
        if row.phase is not Phase.SUSPENDING:
            return
        with suppress(Refused, NotFound):
            await self._agent.cancel(row.incarnation)
        self._look(key)
        await self._sessions.until(
            key,
            lambda now: now.phase is not Phase.SUSPENDING,
            self._settings.settle_limit,
        )

    async def _plan(self, row: SessionRow, placement: Placement) -> StartPlan | None:
        """One attempt; None if the session has moved and must be looked at again."""
        match row.phase:
            case Phase.SUSPENDED:
                return await self._restore(row, placement)
            case Phase.RELEASING:
                # The Hub starts it, so it has stopped it: the release ends here.
                await self._release(row)
                return None
            case Phase.RESUMING:
                return await self._again(row, placement)
            case Phase.SUSPENDING:
                return None
        return await self._with_trees(row, placement)

    async def _release(self, row: SessionRow) -> None:
        """End a captured session, unless that is done by now, or it goes on."""
        try:
            await self._suspender.release(row)
        except Refused as error:
            # A worker may have been told before us that it goes on; it notes that.
            if error.reason is not Reason.NOT_CAPTURED:
                raise
            self._look(row.key)
            limit = self._settings.settle_limit
            if not await self._sessions.until(row.key, lambda now: now != row, limit):
                raise
            return
        self._suspender.released(row)

    async def _restore(self, row: SessionRow, placement: Placement) -> StartPlan | None:
        key = row.key
        if row.bring_back:
            bring_back.take(self._sessions, row, self._settings)
            return None
        observed = await self._facts_of_saved(row, placement)
        if self._sessions.row(key) != row:
            return None
        for tree in observed.left():
            if tree.runs:
                return await self._adopt(row, tree, placement)
        if await self._took_over(row, placement, observed):
            return None
        doubt = self._doubt(row, placement)
        if doubt is not None:
            self._sessions.update(key, failure=doubt)
            return StartPlan(action="refuse", failure=doubt)
        return await self._begin_restore(row, placement, observed)

    async def _took_over(
        self, row: SessionRow, placement: Placement, observed: Observed
    ) -> bool:
        """Whether something newer was adopted than what the journal would restore."""
        for tree in observed.left():
            if tree.state is TreeState.CAPTURED and observed.missed(tree.checkpoint):
                await self._captured(row, tree, observed)
                return True
        if observed.unknown():
            pointer = placement.checkpoint
            adoption.saved(self._sessions, row, observed, self._settings, pointer)
            return True
        return False

    async def _begin_restore(
        self, row: SessionRow, placement: Placement, observed: Observed
    ) -> StartPlan | None:
        key = row.key
        try:
            identity = await self._agent.identity(row.checkpoint)
        except Unreachable:
            raise
        except NotFound:
            if self._take_the_hubs(row, placement, observed):
                return None
            hubs = self._the_hubs(row, placement, observed)
            failure = (
                failure_of(Reason.CHECKPOINT_MISSING, checkpoint=row.checkpoint)
                if hubs is None
                else failure_of(Reason.SAVED_OLDER, when=moment(hubs.created))
            )
            # What was said before the question is no answer to it.
            self._sessions.update(
                key, failure=failure, intent=Intent.NONE, intent_by=""
            )
            return StartPlan(action="refuse", failure=failure)
        except ReclaimError as error:
            self._sessions.update(key, failure=codec.failure_of(error))
            raise
        if self._sessions.row(key) != row:
            return None
        self._sessions.tab_keys.comes_back(key, identity)
        self._sessions.begin(key, "resume")
        row = self._sessions.apply(
            key,
            SessionEvent.RESTORE,
            session=row.session or placement.session,
            incarnation=placement.incarnation,
            placed=False,
            intent=Intent.NONE,
            intent_by="",
        )
        return StartPlan(
            action="restore",
            checkpoint=row.checkpoint,
            generation=row.generation,
            identity=identity,
            suspension=self._sessions.suspension(row),
            session=row.session,
        )

    def _take_the_hubs(
        self, row: SessionRow, placement: Placement, observed: Observed
    ) -> bool:
        """Whether what the Hub remembers is what the session is suspended in now.

        What the journal would restore is gone. If the Hub's is not older than that,
        nobody has to choose; else a person has to say so.
        """
        hubs = self._the_hubs(row, placement, observed)
        if hubs is None or self._sessions.row(row.key) != row:
            return False
        asked = row.failure is not None and row.failure.code == Reason.SAVED_OLDER.value
        agreed = asked and row.intent is Intent.RESUME
        if hubs.generation < row.generation and not agreed:
            return False
        bring_back.take(self._sessions, row, self._settings, checkpoint=hubs.id)
        # Should it be found after all, a person decides.
        gone = expiry.kept(self._sessions, row.checkpoint, Keeping.ASIDE)
        self._sessions.journal.keep(gone)
        return True

    def _the_hubs(
        self, row: SessionRow, placement: Placement, observed: Observed
    ) -> CheckpointInfo | None:
        """What the Hub remembers, if it is there and the journal's is not."""
        known = self._sessions.journal.checkpoint(placement.checkpoint)
        if known is None or known.key != row.key or known.keeping in HIDDEN:
            return None
        gone = observed.checkpoint(row.checkpoint) is None
        return observed.checkpoint(known.id) if gone else None

    async def _facts_of_saved(self, row: SessionRow, placement: Placement) -> Observed:
        """What agent and store say of a session that is suspended in the journal.

        Raises:
            Unreachable: nothing is known. A silent node does not prevent a return if
                Hub and journal agree on the checkpoint; nor does a store that cannot be
                listed now but was listed before.
        """
        agreed = placement.checkpoint == row.checkpoint
        try:
            trees = await self._agent.trees(row.key)
        except Unreachable:
            if placement.checkpoint not in {"", row.checkpoint}:
                raise
            trees = []
        try:
            saved = await self._agent.checkpoints(row.key)
        except Unreachable:
            if not (agreed and self._sessions.store_seen):
                raise
            saved = []
        return self.facts(row.key, trees, saved)

    def facts(
        self, key: SessionKey, trees: Sequence[Tree], saved: Sequence[CheckpointInfo]
    ) -> Observed:
        """What agent and store have said of a session that its spawner asks about."""
        infos = sorted(saved, key=lambda info: info.generation)
        known = frozenset(r.id for r in self._sessions.journal.checkpoints(key))
        observed = Observed(tuple(trees), tuple(infos), HubState.SPAWNING, known)
        return self._sessions.living(key, observed)

    def _doubt(self, row: SessionRow, placement: Placement) -> Failure | None:
        """Why the user must be asked before this checkpoint comes back, if so.

        A person's word, by button or command, settles it; so does a Hub that remembers
        the same checkpoint.
        """
        if row.intent is Intent.RESUME:
            return None
        rows = self._sessions.journal.checkpoints(row.key)
        infos = [each.info for each in rows if each.info is not None]
        mine = next((info for info in infos if info.id == row.checkpoint), None)
        if mine is None:
            return None
        pointer = placement.checkpoint
        agreed = lineage.agrees(pointer, mine, infos)
        if _asks(row):
            rivals = len(lineage.newest(infos)) > 1
            return row.failure if rivals or not agreed else None
        named = {row.dismissed, "", *(each.id for each in rows)}
        older = failure_of(Reason.SAVED_OLDER, when=moment(mine.created))
        return None if agreed or pointer in named else older

    async def _again(self, row: SessionRow, placement: Placement) -> StartPlan | None:
        """A start while another one was under way: the Hub has forgotten that one."""
        if row.incarnation == placement.incarnation:
            return await self._restore_same(row)
        tree = _of(await self._agent.trees(row.key), row.incarnation)
        if tree is not None and tree.runs and not await self._ends(tree):
            return _adopted(tree)
        await self._resumer.kill(row.key, row.incarnation)
        if self._sessions.row(row.key) == row:
            self._resumer.failed(row, failure_of(Reason.CANCELLED))
        return None

    async def _restore_same(self, row: SessionRow) -> StartPlan:
        """The same question asked twice gets the same answer."""
        return StartPlan(
            action="restore",
            checkpoint=row.checkpoint,
            generation=row.generation,
            identity=await self._agent.identity(row.checkpoint),
            suspension=self._sessions.suspension(row),
            session=row.session,
        )

    async def _with_trees(
        self, row: SessionRow, placement: Placement
    ) -> StartPlan | None:
        """The journal knows of no checkpoint: checks that, and whether a tree runs."""
        key = row.key
        trees: list[Tree] | None = None
        try:
            trees = await self._agent.trees(key)
            saved = await self._agent.checkpoints(key)
        except (Unreachable, StoreError) as error:
            if trees:
                raise
            if self._sessions.row(key) != row:
                return None  # what was saved was found meanwhile
            there = placement.remembered or error.reason is Reason.NODE_SILENT
            if there and trees is None:
                raise  # Hub or cluster know of something; what runs nobody has said
            if self._may_be_cold(row, placement, error.reason):
                return StartPlan(action="cold")
            raise
        observed = self.facts(key, trees, saved)
        if self._sessions.row(key) != row:
            return None
        return await self._by_trees(row, placement, observed)

    async def _by_trees(
        self, row: SessionRow, placement: Placement, observed: Observed
    ) -> StartPlan | None:
        """What runs is adopted, what is frozen taken up; else what is saved counts."""
        for tree in observed.left():
            if tree.runs:
                return await self._adopt(row, tree, placement)
            if tree.state is TreeState.CAPTURED:
                await self._captured(row, tree, observed)
                return None
            if tree.state is TreeState.CAPTURING:
                raise Refused(Reason.OPERATION_IN_FLIGHT, operation="capture")
            if tree.state is TreeState.RESTORING and observed.checkpoint(
                tree.checkpoint
            ):
                # The journal is older: it runs soon, or its checkpoint comes back.
                raise Refused(Reason.OPERATION_IN_FLIGHT, operation="restore")
        return await self._nothing_runs(row, placement, observed)

    async def _adopt(
        self, row: SessionRow, tree: Tree, placement: Placement
    ) -> StartPlan | None:
        if await self._ends(tree):
            return None
        if not renewal_ordered(self._sessions, row.key):
            owners.refuse_anothers(tree, placement)
        if row.phase not in LIVE or tree.incarnation != row.incarnation:
            adoption.running(self._sessions, row, tree, self._settings)
        elif row.failure is not None and row.failure.code == Reason.NOT_ADOPTED.value:
            self._sessions.update(row.key, failure=None)
        return _adopted(tree)

    async def _ends(self, tree: Tree) -> bool:
        """Whether the end of a tree that runs was ordered; then it has ended now.

        Raises:
            Refused: its pod is being deleted; that ends by itself.
        """
        if tree.ending:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="stop")
        if not ending.is_ordered(self._sessions, tree.key, tree.incarnation):
            return False
        await self._resumer.kill(tree.key, tree.incarnation)
        return True

    async def _captured(self, row: SessionRow, tree: Tree, observed: Observed) -> None:
        """A captured tree that the journal did not know."""
        info = observed.checkpoint(tree.checkpoint)
        if info is None:
            await self._agent.thaw(tree.incarnation)
        else:
            adoption.captured(self._sessions, row, info, self._settings)

    async def _nothing_runs(
        self, row: SessionRow, placement: Placement, observed: Observed
    ) -> StartPlan | None:
        pointer = placement.checkpoint
        if lineage.found(row, observed, pointer):
            adoption.saved(self._sessions, row, observed, self._settings, pointer)
            return None
        kept = observed.checkpoint(row.checkpoint)
        if row.phase in LIVE:
            if kept is not None:
                adoption.lost(self._sessions, row, kept)
            else:
                vanished.take(self._sessions, self._agent, row)
            return None
        if observed.unknown():
            adoption.saved(self._sessions, row, observed, self._settings, pointer)
            return None
        if row.bring_back:
            bring_back.take(self._sessions, row, self._settings)
            return None
        if self._take_set_aside(row, placement, observed):
            return None
        if not self._accounted_for(row, placement):
            await self._renames.check_checkpoint(placement)
            if self._sessions.row(row.key) == row:
                self._missing(placement)
            return None
        return StartPlan(action="cold")

    def _take_set_aside(
        self, row: SessionRow, placement: Placement, observed: Observed
    ) -> bool:
        """Whether the Hub remembers one that was set aside when it was found.

        A journal that was put back took it for older than a session that has been
        deleted since, whose numbers were higher.
        """
        pointer = placement.checkpoint
        known = self._sessions.journal.checkpoint(pointer)
        if known is None or known.keeping is not Keeping.ASIDE:
            return False
        dismissed = pointer == row.dismissed
        return not dismissed and self._take_the_hubs(row, placement, observed)

    def _accounted_for(self, row: SessionRow, placement: Placement) -> bool:
        """Whether the journal knows what became of the checkpoint that the Hub knows.

        If it does not, the journal is older than the Hub's database.
        """
        rows = self._sessions.journal.checkpoints(row.key)
        named = {"", row.dismissed, *(each.id for each in rows)}
        return placement.checkpoint in named

    def _may_be_cold(self, row: SessionRow, placement: Placement, why: Reason) -> bool:
        """Whether a start may be cold although agent or store do not answer.

        Journal and Hub must both know of no checkpoint. The journal's word is good once
        it was compared with the store, for sessions that were never suspended, and if
        there is no agent at all, since the first start brings its node. A journal that
        has no row of a session that the Hub remembers was lost, or is another one.
        """
        if row.phase is not Phase.STOPPED or not self._accounted_for(row, placement):
            return False
        if placement.remembered and not row.since:
            return False
        never_saved = not row.generation and not placement.remembered
        return self._sessions.store_seen or never_saved or why is Reason.NO_AGENT

    def _missing(self, placement: Placement) -> None:
        """The spawner names a missing checkpoint: the user has to choose."""
        self._sessions.apply(
            placement.key,
            SessionEvent.FOUND_SAVED,
            failure=failure_of(
                Reason.CHECKPOINT_MISSING, checkpoint=placement.checkpoint
            ),
            checkpoint=placement.checkpoint,
        )

    # --- after the plan
    def placed(self, placement: Placement) -> None:
        """See ``Controller.placed``."""
        key, sessions = placement.key, self._sessions
        sessions.take_up_deletions()  # if the start was planned without this service
        row = sessions.row(key)
        if row.phase is Phase.RESUMING and row.incarnation == placement.incarnation:
            sessions.update(key, placed=True)
            end_renewal(sessions, key)  # the spawner has seen to it by now
        elif placement.checkpoint:
            raise Refused(Reason.WRONG_PHASE, phase=row.phase.value, action="be placed")
        else:
            sessions.tab_keys.begun(key, placement.tab_key)
            self._started(row, placement)
            owners.note(sessions, placement, self._settings)
        self._look(key)

    def _started(self, row: SessionRow, placement: Placement) -> None:
        """A cold start; a checkpoint, if there is one, is set aside."""
        if row.incarnation == placement.incarnation:
            return  # it was found before; whatever has become of it since is newer
        kept = expiry.kept(
            self._sessions, row.checkpoint, Keeping.ASIDE, self._settings.set_aside
        )
        stopped = row.phase in {*LIVE, Phase.STOPPED}
        self._sessions.apply(
            row.key,
            SessionEvent.STARTED if stopped else SessionEvent.FOUND_RUNNING,
            checkpoints=kept,
            session=placement.session,
            incarnation=placement.incarnation,
            checkpoint="",
            dismissed=row.checkpoint or row.dismissed,
            attempt="",
            placed=False,
            failures=0,
            backoff_until=None,
            stop_asked=None,
            started_at=self._sessions.clock.now(),
            resumed_at=None,
        )

    async def progress(self, key: SessionKey, after: int) -> AsyncIterator[Event]:
        """See ``Controller.progress``."""
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
        if row.phase in LIVE:
            yield Event(tree=await self._agent.tree(row.incarnation))
            return
        yield Event(failure=row.failure or failure_of(Reason.CANCELLED))

    def login_revoked(self, placement: Placement) -> None:
        """See ``Controller.login_revoked``."""
        if self._sessions.row(placement.key).incarnation == placement.incarnation:
            self._sessions.tab_keys.revoke(placement.key)

    async def cancelled(self, placement: Placement) -> None:
        """See ``Controller.cancelled``."""
        row = self._sessions.row(placement.key)
        failure = placement.failure
        if failure is not None and failure.code == Reason.TOKEN_REVOKED.value:
            self._sessions.tab_keys.revoke(placement.key)
        if row.incarnation == placement.incarnation:
            self._cancel(row, placement)
        with suppress(Unreachable, Refused):
            await self._resumer.kill(placement.key, placement.incarnation)
        self._look(placement.key)

    def _cancel(self, row: SessionRow, placement: Placement) -> None:
        sessions = self._sessions
        if row.phase is Phase.RESUMING:
            operation = sessions.operation(row.key)
            failed = operation is not None and operation.ended
            self._resumer.failed(row, row.failure if failed else placement.failure)
        elif row.phase in LIVE and row.checkpoint == placement.checkpoint != "":
            # It ran for a moment and never answered the Hub.
            sessions.apply(
                row.key,
                SessionEvent.LOST,
                checkpoints=expiry.kept(sessions, row.checkpoint, Keeping.CURRENT),
            )
        elif row.phase in LIVE:
            sessions.apply(row.key, SessionEvent.STOPPED, checkpoint="")


def _asks(row: SessionRow) -> bool:
    """Whether the row has a question that a person must answer first."""
    return row.failure is not None and row.failure.code == Reason.SAVED_FOUND.value


def _adopted(tree: Tree) -> StartPlan:
    return StartPlan(action="adopt", incarnation=tree.incarnation, session=tree.session)


def _of(trees: list[Tree], incarnation: str) -> Tree | None:
    """That incarnation's tree, if anything is left of it."""
    return next(
        (
            tree
            for tree in trees
            if tree.incarnation == incarnation and tree.state is not TreeState.GONE
        ),
        None,
    )


#: Seconds for which an order holds.
RENEWAL_SECONDS = 86400.0
_MARK = "renew login:"


def order_renewal(sessions: Sessions, key: SessionKey, by: str) -> None:
    """Write the order down, with who gave it."""
    until = sessions.clock.now() + RENEWAL_SECONDS
    sessions.journal.write(*audit_log.set_mark(_MARK + key.path, until))
    sessions.update(key, sessions.audit_line(key, by, "renew login"))


def renewal_ordered(sessions: Sessions, key: SessionKey) -> bool:
    """Whether there is an order that still holds."""
    until = audit_log.mark(sessions.journal, _MARK + key.path)
    return until is not None and sessions.clock.now() < until


def end_renewal(sessions: Sessions, key: SessionKey) -> None:
    """The login is valid again: the order is used up."""
    if audit_log.mark(sessions.journal, _MARK + key.path) is not None:
        sessions.journal.write(*audit_log.set_mark(_MARK + key.path, None))

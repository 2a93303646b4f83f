"""How a session is to be started, and how that start goes on: the spawner's questions.

Called by the controller for the spawner in the Hub's process, while a worker may be at
the same session; so every answer is computed from the journal as it is after the last
``await``, and written at once. Whoever has something saved is never started cold here.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import msgspec

from jupyterhub_gpu_reclaim import wire
from jupyterhub_gpu_reclaim.errors import (
    NotFound,
    ReclaimError,
    Refused,
    StoreError,
    Unreachable,
)
from jupyterhub_gpu_reclaim.models import (
    HubState,
    Phase,
    Placement,
    SessionKey,
    StartPlan,
    Tree,
    TreeState,
)
from jupyterhub_gpu_reclaim.orchestrator import finds, renewals
from jupyterhub_gpu_reclaim.orchestrator.acts import Facts
from jupyterhub_gpu_reclaim.orchestrator.phases import LIVE, Happened
from jupyterhub_gpu_reclaim.orchestrator.rows import Intent, SessionRow
from jupyterhub_gpu_reclaim.orchestrator.spawning import Spawning
from jupyterhub_gpu_reclaim.orchestrator.suspend import failure_of
from jupyterhub_gpu_reclaim.reasons import Reason

_log = logging.getLogger(__name__)

#: How often a plan is made anew because the session moved meanwhile.
_ATTEMPTS = 5


class Starts(Spawning):
    """The spawner's questions about starts."""

    async def plan(self, placement: Placement) -> StartPlan:
        """Cold, restore, adopt or refuse; see ``Controller.plan_start``."""
        key = placement.key
        try:
            await self.call_off(key)
            for _ in range(_ATTEMPTS):
                plan = await self._plan(self._sessions.row(key), placement)
                if plan is not None:
                    _log.info("%s: start %s", key, plan.action)
                    return self._with_order(key, plan)
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="suspend")
        except ReclaimError as error:
            _log.info("%s: start refused: %s", key, error)
            return StartPlan(action="refuse", failure=wire.failure_of(error))
        finally:
            self._look(key)

    def _with_order(self, key: SessionKey, plan: StartPlan) -> StartPlan:
        """The plan, with whether an old login may be made valid again."""
        if plan.action not in {"restore", "adopt"}:
            return plan
        if not renewals.ordered(self._sessions, key):
            return plan
        if plan.action == "adopt":  # of a restore, the place is told
            renewals.done(self._sessions, key)
        return msgspec.structs.replace(plan, renew_login=True)

    async def call_off(self, key: SessionKey) -> None:
        """A capture under way is called off; returns when it has ended either way."""
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
        """One attempt; None when the session has moved and is to be looked at anew."""
        match row.phase:
            case Phase.SUSPENDED:
                return await self._restore(row, placement)
            case Phase.RELEASING:
                # The Hub starts it, so it has stopped it: the release ends here.
                await self._suspender.release(row)
                self._suspender.released(row)
                return None
            case Phase.RESUMING:
                return await self._again(row, placement)
            case Phase.SUSPENDING:
                return None
        return await self._with_trees(row, placement)

    async def _restore(self, row: SessionRow, placement: Placement) -> StartPlan | None:
        key = row.key
        try:
            identity = await self._agent.identity(row.checkpoint)
        except Unreachable:
            raise
        except NotFound:
            failure = failure_of(Reason.CHECKPOINT_MISSING, checkpoint=row.checkpoint)
            self._sessions.update(key, failure=failure)
            return StartPlan(action="refuse", failure=failure)
        except ReclaimError as error:
            self._sessions.update(key, failure=wire.failure_of(error))
            raise
        if self._sessions.row(key) != row:
            return None
        self._sessions.begin(key, "resume")
        row = self._sessions.apply(
            key,
            Happened.RESTORE,
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
        )

    async def _again(self, row: SessionRow, placement: Placement) -> StartPlan | None:
        """A start while another one was in hand: the Hub has forgotten that one."""
        if row.incarnation == placement.incarnation:
            return await self._restore_same(row)
        tree = _of(await self._agent.trees(row.key), row.incarnation)
        if tree is not None and tree.state is TreeState.RUNNING:
            return StartPlan(action="adopt", incarnation=row.incarnation)
        await self._resumer.kill(row.incarnation)
        if self._sessions.row(row.key) == row:
            self._resumer.failed(row, failure_of(Reason.CANCELLED))
        return None

    async def _restore_same(self, row: SessionRow) -> StartPlan:
        """The same question twice has the same answer."""
        return StartPlan(
            action="restore",
            checkpoint=row.checkpoint,
            generation=row.generation,
            identity=await self._agent.identity(row.checkpoint),
        )

    async def _with_trees(
        self, row: SessionRow, placement: Placement
    ) -> StartPlan | None:
        """The journal says that nothing is saved: is that so, and does it run?"""
        key = row.key
        trees: list[Tree] = []
        try:
            trees = await self._agent.trees(key)
            saved = await self._agent.checkpoints(key)
        except (Unreachable, StoreError):
            if _is_new(row, placement) and not any(tree.key == key for tree in trees):
                return StartPlan(action="cold")  # nothing is saved, as far as we know
            raise
        if self._sessions.row(key) != row:
            return None
        mine = tuple(t for t in trees if t.key == key)
        infos = sorted(
            (s for s in saved if s.key == key), key=lambda info: info.generation
        )
        known = frozenset(r.id for r in self._sessions.journal.checkpoints(key))
        facts = Facts(mine, tuple(infos), HubState.SPAWNING, known)
        for tree in facts.left():
            if tree.state is TreeState.RUNNING:
                return self._adopt(row, tree)
            if tree.state is TreeState.CAPTURED:
                await self._captured(row, tree, facts)
                return None
            if tree.state is TreeState.CAPTURING:
                raise Refused(Reason.OPERATION_IN_FLIGHT, operation="capture")
        return self._nothing_runs(row, placement, facts)

    def _adopt(self, row: SessionRow, tree: Tree) -> StartPlan:
        if row.phase not in LIVE or tree.incarnation != row.incarnation:
            finds.running(self._sessions, row, tree, self._settings)
        return StartPlan(action="adopt", incarnation=tree.incarnation)

    async def _captured(self, row: SessionRow, tree: Tree, facts: Facts) -> None:
        """A saved tree that the journal did not know of."""
        info = facts.checkpoint(tree.checkpoint)
        if info is None:
            await self._agent.thaw(tree.incarnation)
        else:
            finds.captured(self._sessions, row, info)

    def _nothing_runs(
        self, row: SessionRow, placement: Placement, facts: Facts
    ) -> StartPlan | None:
        kept = facts.checkpoint(row.checkpoint)
        if row.phase in LIVE:
            if kept is not None:
                finds.lost(self._sessions, row, kept)
            else:
                self._sessions.apply(
                    row.key, Happened.VANISHED, checkpoint="", attempt=""
                )
            return None
        if row.since:
            return StartPlan(action="cold")
        if any(info.id not in facts.known for info in facts.saved or ()):
            finds.saved(self._sessions, row, facts, self._settings)
            return None
        if placement.checkpoint:
            self._missing(placement)
            return None
        return StartPlan(action="cold")

    def _missing(self, placement: Placement) -> None:
        """The spawner knows of a checkpoint that nobody has: the user has to choose."""
        known = self._sessions.journal.checkpoint(placement.checkpoint)
        if known is not None and known.key != placement.key:
            # The Hub renamed the user or the server; the saved programs cannot.
            raise Refused(Reason.RENAMED, there=known.key, here=placement.key)
        self._sessions.apply(
            placement.key,
            Happened.FOUND_SAVED,
            failure=failure_of(
                Reason.CHECKPOINT_MISSING, checkpoint=placement.checkpoint
            ),
            checkpoint=placement.checkpoint,
        )


def _is_new(row: SessionRow, placement: Placement) -> bool:
    """Whether neither the journal nor the Hub has heard of anything that is saved."""
    return row.phase is Phase.STOPPED and bool(row.since or not placement.checkpoint)


def _of(trees: list[Tree], incarnation: str) -> Tree | None:
    """That incarnation, if anything is left of it."""
    return next(
        (
            tree
            for tree in trees
            if tree.incarnation == incarnation and tree.state is not TreeState.GONE
        ),
        None,
    )

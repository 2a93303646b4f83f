"""Questions of the Hub's spawner: look, ask the reconciler, act, until it answers.

A worker may be at the same session, so each answer is computed from the journal as it
is after the last ``await``, and acted on at once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    ReclaimError,
    Refused,
    StoreError,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import HubState, Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.loop.observer import in_order
from jupyterhub_gpu_reclaim.controlplane.loop.reconciler import settle
from jupyterhub_gpu_reclaim.controlplane.model.actions import (
    ANSWERS,
    Action,
    ActionKind,
    Asked,
    Want,
)
from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.loop.observer import Observer
    from jupyterhub_gpu_reclaim.controlplane.loop.worker import Worker
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: Most looks at a session that moves, or for which something was done first.
_ATTEMPTS = 12


class Answer(NamedTuple):
    """An answer to a question, and the row and facts that it was given for."""

    action: Action
    row: SessionRow
    observed: Observed


class Questions:
    def __init__(
        self,
        *,
        sessions: Sessions,
        agent: Agent,
        observer: Observer,
        worker: Worker,
    ) -> None:
        self._sessions = sessions
        self._agent = agent
        self._observer = observer
        self._worker = worker

    async def call_off(self, key: SessionKey) -> None:
        """Cancel a capture under way; return when it has ended either way."""
        row = self._sessions.row(key)
        if row.phase is not Phase.SUSPENDING:
            return
        if self._sessions.drains.of_session(row) is None:
            with suppress(Refused, NotFound):
                await self._agent.order(row.incarnation, orders.Cancel())
        self._sessions.look(key)
        await self.moved(key, lambda now: now.phase is not Phase.SUSPENDING)

    async def moved(self, key: SessionKey, so: Callable[[SessionRow], bool]) -> bool:
        return await self._sessions.until(key, so, self._sessions.settings.settle_limit)

    async def _moved_on(self, row: SessionRow) -> bool:
        return await self.moved(row.key, lambda now: now != row)

    async def answer(self, key: SessionKey, want: Want, placement: Placement) -> Answer:
        """Return the answer, after doing everything that must come before it.

        Raises:
            ReclaimError: a part that is needed does not answer, or the session moves.
        """
        for _ in range(_ATTEMPTS):
            row = self._sessions.row(key)
            asked = self._question(key, want, placement)
            answer, silence = await self._ask_reconciler(row, asked)
            if self._sessions.row(key) != row:
                continue
            if answer.action.kind in ANSWERS:
                return answer
            if answer.action.kind is ActionKind.UNANSWERED and silence is not None:
                raise silence
            if answer.action.kind is ActionKind.WAIT:
                if not await self._moved_on(row):
                    break
                continue
            await self.act(answer, placement)
        raise Refused(Reason.OPERATION_IN_FLIGHT, operation="suspend")

    def _question(self, key: SessionKey, want: Want, placement: Placement) -> Asked:
        """Put the question with what the journal has, read when it is answered."""
        return Asked(
            want=want,
            incarnation=placement.incarnation,
            checkpoint=placement.checkpoint,
            stamp=(placement.term, placement.generation),
            former=placement.former,
            remembered=placement.remembered,
            listed=self._observer.is_listed(key),
            came_back=self._sessions.has_come_back(key),
        )

    async def _ask_reconciler(
        self, row: SessionRow, asked: Asked
    ) -> tuple[Answer, ReclaimError | None]:
        """Ask the reconciler, with as few questions to others as it needs."""
        observed = Observed(None, None, None)
        silence: ReclaimError | None = None
        answer = self._settle(row, observed, asked)
        for look_at in (self._ask_for_trees, self._ask_for_checkpoints):
            if answer.action.kind is not ActionKind.UNANSWERED:
                break
            try:
                observed = await look_at(row.key, observed)
            except (Unreachable, StoreError) as error:
                # The first is told: it is why the second was of no use.
                silence = silence or error
            if silence is not None and look_at == self._ask_for_checkpoints:
                asked = asked._replace(silence=silence.reason)
            answer = self._settle(row, observed, asked)
        return answer, silence

    async def _ask_for_trees(self, key: SessionKey, observed: Observed) -> Observed:
        return observed._replace(trees=tuple(await self._agent.trees(key)))

    async def _ask_for_checkpoints(
        self, key: SessionKey, observed: Observed
    ) -> Observed:
        return observed._replace(saved=in_order(await self._agent.checkpoints(key)))

    def _settle(self, row: SessionRow, observed: Observed, asked: Asked) -> Answer:
        observed = observed._replace(hub=HubState.SPAWNING)
        observed = self._observer.whole(row.key, observed)
        asked = asked._replace(kept=tuple(self._sessions.journal.checkpoints(row.key)))
        now = self._sessions.clock.now()
        action = settle(row, observed, now, self._sessions.settings, asked)
        return Answer(action, row, observed)

    async def act(self, answer: Answer, placement: Placement) -> None:
        """Do what must be done before there is an answer."""
        row, action = answer.row, answer.action
        hubs = {placement.former, placement.checkpoint}
        # Of a start these are new, and nothing is saved under them.
        hubs |= {placement.session, placement.incarnation}
        try:
            await self._worker.act(row, action, answer.observed, hubs)
        except Refused as error:
            # A worker may have been told before us that it goes on; it notes that.
            if error.reason is not Reason.NOT_CAPTURED:
                raise
            self._sessions.look(row.key)
            if not await self._moved_on(row):
                raise

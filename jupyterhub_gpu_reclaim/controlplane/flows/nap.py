"""Naps: a session's GPU memory is moved out and back, while the session runs.

The agent wakes a session by itself as soon as somebody uses it, and asks nobody. So
what is journalled here is what the agent has done, and an order may always come too
late: a nap that fails leaves the session running, with the reason and a pause before
the next; a wake that fails is ordered again until the session is awake. A crash at any
point is settled by the reconciler, which takes the agent's word.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import CALLED_OFF, Reason
from jupyterhub_gpu_reclaim.common.text import duration, size
from jupyterhub_gpu_reclaim.controlplane.model.actions import failure_of
from jupyterhub_gpu_reclaim.controlplane.model.phases import (
    LIVE,
    NO_ORDER,
    SessionEvent,
)
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent, SessionRow
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import (
    MAKES_ROOM,
    SERVICE,
)
from jupyterhub_gpu_reclaim.controlplane.sessions.runtime import NapTrouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import (
        Decision,
        Failure,
        Step,
        Tree,
    )
    from jupyterhub_gpu_reclaim.controlplane.flows.operations import Operations
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

_log = logging.getLogger(__name__)

#: Shortest useful nap in seconds; a shorter one that something ended was of no use.
SHORT_NAP = 60.0


class Napper:
    def __init__(self, sessions: Sessions, operations: Operations) -> None:
        self._sessions = sessions
        self._settings = sessions.settings
        self._operations = operations
        #: called when a session has begun to nap
        self.naps: Callable[[], None] = lambda: None

    async def nap(self, row: SessionRow, by: str, why: Decision | None = None) -> None:
        """Move a session's GPU memory out; it then is NAPPING, or runs as before."""
        runtime = self._sessions.runtime(row.key)
        runtime.moving_out = runtime.cards(row.incarnation)
        seen = runtime.seen if why is not None else None
        try:
            end = await self._operations.end_of(row, orders.Nap(seen=seen), "nap")
        finally:
            runtime.moving_out = None
            runtime.makes_room_for = None
        now = self._sessions.row(row.key)
        if not _still_runs(row, now):
            return
        if end.failure is not None and end.failure.code == Reason.ORDER_LATE.value:
            self._sessions.counters.ended(
                "nap", "failed", end.failure.code
            )  # it is judged anew
        elif end.failure is not None:
            self._note_failure(now, by, end.failure)
        elif end.tree is not None:
            self._sessions.counters.ended("nap", "ok")
            trouble = runtime.nap_trouble_of(row.incarnation)
            # Whether this one lasts longer is seen at its end.
            runtime.nap_trouble = trouble if trouble and trouble.is_short else None
            self._journal_step(now, SessionEvent.NAPS, end.tree, by, why)

    async def make_room(self, row: SessionRow, why: Decision) -> None:
        """Nap for another session that wakes.

        The reason is written down first: it is not asked again within its
        ``cool_down``, not even after a crash.
        """
        line = self._sessions.audit_line(row.key, SERVICE, MAKES_ROOM, why.message)
        self._sessions.update(row.key, msgspec.structs.replace(line, code=why.code))
        self._sessions.runtime(row.key).made_room_at = line.at
        await self.nap(row, SERVICE, why)

    async def wake(self, row: SessionRow, by: str) -> float:
        """Move a session's GPU memory back; return the seconds until the next try."""
        end = await self._operations.end_of(row, orders.Wake(), "wake")
        now = self._sessions.row(row.key)
        if not _still_runs(row, now):
            return 0.0
        if end.tree is not None:
            self._note_woken(now, end.tree, by)
            return 0.0
        if end.failure is not None:
            self._sessions.counters.ended("wake", "failed", end.failure.code)
            failure = self._sessions.timed(end.failure)
            trouble = NapTrouble(row.incarnation, failure, 0, None)
            self._sessions.runtime(row.key).nap_trouble = trouble
            self._sessions.touch(row.key)
            _log.info("%s: not awake yet: %s", row.key, end.failure.message)
        return self._settings.tick_interval

    def found_napping(self, row: SessionRow, tree: Tree) -> None:
        self._journal_step(row, SessionEvent.NAPS, tree, SERVICE)

    def found_awake(self, row: SessionRow, tree: Tree) -> None:
        """Note that a tree runs that the journal has as napping: somebody used it."""
        for step in _wake_steps(tree.steps):
            self._sessions.counters.step("wake", step)
        self._note_woken(row, tree, SERVICE)

    def _note_woken(self, row: SessionRow, tree: Tree, by: str) -> None:
        self._sessions.counters.ended("wake", "ok")
        lasted = self._sessions.clock.now() - row.since
        runtime = self._sessions.runtime(row.key)
        short = row.phase is Phase.NAPPING and lasted < SHORT_NAP
        if by == SERVICE and short:
            # What woke it, such as a page that asks, may do so again at once.
            why = failure_of(Reason.NAP_SHORT, lasted=duration(max(0.0, lasted)))
            runtime.nap_trouble = self._next_trouble(row, why)
        elif by != SERVICE or lasted >= SHORT_NAP:
            runtime.nap_trouble = None
        self._journal_step(row, SessionEvent.WAKES, tree, by)

    def _journal_step(
        self,
        row: SessionRow,
        event: SessionEvent,
        tree: Tree,
        by: str,
        why: Decision | None = None,
    ) -> None:
        self._sessions.note_nap(row.key, tree)
        obeyed = row.intent in {Intent.NAP, Intent.WAKE} and by != SERVICE
        order: dict[str, Any] = NO_ORDER if obeyed else {}
        moved = f"{size(tree.nap.bytes)} of GPU memory." if tree.nap else ""
        # A failure is that of a suspend, which is still due.
        self._sessions.apply(
            row.key, event, by=by, why=why, note=moved, failure=row.failure, **order
        )
        if event is SessionEvent.NAPS:
            self.naps()

    def _note_failure(self, row: SessionRow, by: str, failure: Failure) -> None:
        self._sessions.runtime(row.key).nap_trouble = self._next_trouble(row, failure)
        self._sessions.counters.ended("nap", "failed", failure.code)
        line = self._sessions.audit_line(row.key, by, "nap failed", failure.message)
        order: dict[str, Any] = NO_ORDER if row.intent is Intent.NAP else {}
        self._sessions.update(row.key, line, **order)
        _log.info("%s: it runs on without a nap: %s", row.key, failure.message)

    def _next_trouble(self, row: SessionRow, failure: Failure) -> NapTrouble:
        """Count one more failure in a row, and how long the policy waits after it."""
        former = self._sessions.runtime(row.key).nap_trouble_of(row.incarnation)
        failures = former.failures if former is not None else 0
        failures += failure.code not in CALLED_OFF
        pause = self._settings.pause_after(failures)
        if not failure.retryable:
            pause = self._settings.backoff_limit  # it is not different in a minute
        until = self._sessions.clock.now() + pause
        failure = self._sessions.timed(failure)
        return NapTrouble(row.incarnation, failure, failures, until)


def _still_runs(before: SessionRow, now: SessionRow) -> bool:
    """Whether it is still the session that the order was about, and it runs."""
    return now.incarnation == before.incarnation and now.phase in LIVE


def _wake_steps(steps: list[Step]) -> list[Step]:
    names = [step.step for step in steps]
    return steps if names in (["gpu"], ["room", "gpu"]) else []

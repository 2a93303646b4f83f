"""Defects of the service."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.agent_orders import Discard
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import (
    expiry,
    loops,
    owners,
    phase,
    retention,
    session,
    settle,
    taking,
)
from jupyterhub_gpu_reclaim.controlplane.decide.room import RoomMaker
from jupyterhub_gpu_reclaim.controlplane.deletions import Deletions
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.phase import Observed
from jupyterhub_gpu_reclaim.controlplane.runtime import Runtime
from jupyterhub_gpu_reclaim.controlplane.session import LIVE
from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
from jupyterhub_gpu_reclaim.controlplane.settle import Action, ActionKind, AnswerKind
from jupyterhub_gpu_reclaim.controlplane.worker import Worker
from jupyterhub_gpu_reclaim.hub.spawner.mixin import ReclaimMixin
from jupyterhub_gpu_reclaim.node.local_node import LocalNode
from jupyterhub_gpu_reclaim.node.operations.known_term import KnownTerm
from jupyterhub_gpu_reclaim.node.workflows.outcomes import Outcomes
from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot, allow
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.nap import NapPolicy
from simulation.doubles import spawner
from simulation.mutants.hub import ANYBODYS_STOP
from simulation.mutants.patch import Patch, nothing, yes

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        Placement,
        SessionKey,
        Tree,
    )
    from jupyterhub_gpu_reclaim.controlplane.session import SessionEvent, SessionRow


def _as_the_journal_has_it(row: SessionRow, seen: Observed) -> CheckpointInfo | None:
    return seen.checkpoint(row.checkpoint)


OLDER_JOURNAL: tuple[Patch, ...] = (
    (phase, "current", _as_the_journal_has_it),
    (settle, "is_accounted_for", yes),
)


class _Always:
    """A field that is always true."""

    def __get__(self, instance: object, owner: object = None) -> bool:
        return True

    def __set__(self, instance: object, value: bool) -> None:
        """It stays so."""


async def _as_the_last_tick_saw(agent: object, incarnation: str) -> bool:
    del agent, incarnation
    return True


#: Nobody looks whether a session still runs before what it came from is deleted.
_UNSEEN: tuple[Patch, ...] = (
    (expiry, "_is_running", _as_the_last_tick_saw),
    (LocalNode, "_refuse_ended", _as_the_last_tick_saw),
)

EXPIRES: tuple[Patch, ...] = ((Runtime, "compared", _Always()), *_UNSEEN)


def _missing_in_the_store_alone(row: SessionRow, observed: Observed) -> bool:
    if row.phase is Phase.SUSPENDED:
        return observed.checkpoint(row.checkpoint) is None
    return False


LAST_PARENT: tuple[Patch, ...] = (
    (loops, "_is_missing", _missing_in_the_store_alone),
    *_UNSEEN,
)


class _NoTerm:
    """No agent knows of a service's term."""

    def __get__(self, instance: object, owner: object = None) -> int:
        return 0


def _one_more(row: SessionRow, infos: object) -> dict[str, tuple[int, int]]:
    del infos  # whatever their numbers are
    return {"stamp": (row.stamp[0], row.stamp[1] + 1)}


def _after_the_row(self: Sessions, key: SessionKey) -> int:
    return self.row(key).stamp[1] + 1


_differs = phase.differs


def _but_stamps(row: SessionRow, state: phase.State, seen: Observed) -> bool:
    return _differs(row, state, seen._replace(saved=()))


GENERATIONS: tuple[Patch, ...] = (
    (KnownTerm, "number", _NoTerm()),
    (phase, "differs", _but_stamps),
    (retention, "highest", _one_more),
    (Sessions, "next_generation", _after_the_row),
)


def _take_it(self: Journal, connection: object) -> bool:
    del self, connection
    return True


NO_LOCK: tuple[Patch, ...] = (
    (Journal, "_is_locked", _take_it),
    (Journal, "is_held", yes),
    *ANYBODYS_STOP,  # what the other service has asked for
)


async def _leave_it(self: Worker, row: SessionRow, tree: Tree) -> float:
    del self, row, tree
    return 5.0


def _but_naps(row: SessionRow, state: phase.State, seen: Observed) -> bool:
    naps = {row.phase, state.phase} <= LIVE
    return _differs(row, state, seen) and not naps


MISSED_NAPS: tuple[Patch, ...] = ((phase, "differs", _but_naps),)
ORDERS_TO_NAP: tuple[Patch, ...] = ((Worker, "_nap_or_wake", _leave_it),)


def _nothing_ends(
    event: SessionEvent, before: SessionRow, after: SessionRow
) -> dict[str, Any]:
    del event, before, after
    return {}


LASTING_ORDERS: tuple[Patch, ...] = ((session, "ended", _nothing_ends),)


def _as_it_is(self: Deletions, key: object, observed: Observed) -> Observed:
    del self, key
    return observed


async def _once(self: Deletions, key: Any) -> bool:
    """What does not answer now is never asked again."""
    order = self.pending(key)
    if order is None:
        return False
    with suppress(Exception):
        trees = await self.sessions.agent.trees(key)
        for tree in trees:
            if self._is_old(order, tree):
                await self._end_tree(tree)
        for row in self.sessions.journal.checkpoints(key):
            await self.sessions.agent.order(row.id, Discard())
            self.sessions.journal.drop(row.id)
    self._note_done(order)
    return False


FORGOTTEN_DELETIONS: tuple[Patch, ...] = (
    (Deletions, "living", _as_it_is),
    (Deletions, "carry_out", _once),
    (ReclaimMixin, "_order_deletion", nothing),
    (owners, "check", nothing),
    (owners, "note", nothing),  # which knows the new account by its number
)


_living = Deletions.living


def _by_what_was_taken_up(self: Deletions, key: SessionKey, observed: Observed) -> Any:
    folder, self.folder = self.folder, None
    try:
        return _living(self, key, observed)
    finally:
        self.folder = folder


LATE_DELETIONS: tuple[Patch, ...] = (
    (Deletions, "living", _by_what_was_taken_up),
    # a second guard: who waits for the service is told of the order by then
    (spawner, "STARTING_LIMIT", 0.0),
)


_by_its_parts = settle._by_its_parts


def _is_over(row: SessionRow, observed: Observed, asked: Any) -> Action:
    """What the journal does not know has ended, and nothing may come back."""
    if row.incarnation != asked.incarnation:
        return settle.END
    return _by_its_parts(row, observed, asked)


LOST_END: tuple[Patch, ...] = ((settle, "_by_its_parts", _is_over),)


def _if_they_answer(row: SessionRow, observed: Observed, asked: Any) -> Action:
    answer = _by_its_parts(row, observed, asked)
    mine = row.incarnation == asked.incarnation
    silent = answer.kind is ActionKind.UNANSWERED
    return settle.END if mine and silent else answer


SILENT_LOSS: tuple[Patch, ...] = ((settle, "_by_its_parts", _if_they_answer),)


def _unnoted(row: SessionRow, observed: Observed, asked: Any) -> Action:
    del row, observed, asked
    return settle.END


UNNOTED_RETURN: tuple[Patch, ...] = ((settle, "_settle_return", _unnoted),)


def _nothing_is_there(row: SessionRow, observed: Observed, asked: Any) -> Action:
    """Nobody answers, so there is nothing."""
    del row, observed
    kind = ActionKind.UNANSWERED if asked.silence is None else AnswerKind.COLD
    return Action(kind)


SILENCE: tuple[Patch, ...] = ((settle, "_settle_silence", _nothing_is_there),)


async def _leave(*whom: object) -> None:
    del whom


LEFT_RESTORE: tuple[Patch, ...] = (
    (taking, "end", _leave),
    (Outcomes, "refuse_if_leased", nothing),
    (Observed, "whole", Observed.left),  # a second guard: an empty place is no session
)

NO_ROOM_MADE: tuple[Patch, ...] = ((RoomMaker, "refresh", nothing),)


def _never_asked(self: Guards, snapshot: SessionSnapshot, now: float) -> list[Any]:
    del self, snapshot, now
    return []


ASKED_AGAIN: tuple[Patch, ...] = ((Guards, "made_room", _never_asked),)


def _whoever(self: NapPolicy, snapshot: SessionSnapshot, now: float) -> list[Any]:
    denials = self._guards.denials(snapshot, now)
    denials += self._guards.made_room(snapshot, now)
    return denials or [allow(Reason.NAP_ROOM, now, idle="0 s")]


ASKED_AT_WORK: tuple[Patch, ...] = ((NapPolicy, "for_room", _whoever),)


def _by_its_name(sessions: Sessions, placement: Placement) -> SessionRow:
    return sessions.row(placement.key)


async def _any_name(*_: object) -> None:
    return


RENAMED: tuple[Patch, ...] = (
    (owners, "row_of", _by_its_name),
    (owners, "check_names", _any_name),
)

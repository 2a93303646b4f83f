"""Totals of all sessions at this moment: GPUs by state, GPU time, and what is stored.

For people and metrics: nothing is decided by them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.kept_bytes import kept_bytes
from jupyterhub_gpu_reclaim.common.models import Phase, Value
from jupyterhub_gpu_reclaim.controlplane import accounting
from jupyterhub_gpu_reclaim.controlplane.accounting import GpuCount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.common.models import GpuSample
    from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


#: Percent of a card from which it is at work (``IdlePolicy.busy_gpu_percent``).
WORKING_PERCENT = 5.0


class StoreUse(Value, frozen=True, kw_only=True):
    user: str
    checkpoints: int
    logical_bytes: int  #: size of the sessions' contents
    stored_bytes: int  #: bytes that they keep in the store


def gpus(sessions: Sessions) -> list[GpuCount]:
    """Return the GPUs by node, model and state; a MIG instance is one of its own."""
    now = sessions.clock.now()
    rows = sessions.journal.sessions()
    states: dict[tuple[str, int | None], tuple[str, str, str]] = {}
    for row, card in _cards(sessions, rows):
        name = (card.uuid, card.instance)
        state = accounting.KEPT if accounting.is_kept(row, now) else accounting.IDLE
        state = accounting.IN_USE if _is_at_work(sessions, row) else state
        _, _, before = states.get(name, ("", "", state))
        # One that works is enough, and so is one that is kept.
        state = min(state, before, key=accounting.GPU_STATES.index)
        states[name] = (row.node, card.name, state)
    found: dict[tuple[str, str, str], float] = dict(Counter(states.values()))
    for row in rows:
        if row.phase is Phase.SUSPENDED and (held := sessions.gpus_of(row)):
            kind = (row.node, held[0].name, accounting.FREED)
            found[kind] = found.get(kind, 0.0) + sessions.gpus_left(row)
    return [GpuCount(*kind, found[kind]) for kind in sorted(found)]


def _cards(
    sessions: Sessions, rows: list[SessionRow]
) -> Iterator[tuple[SessionRow, GpuSample]]:
    for row in rows:
        if not row.phase.rests:
            for card in sessions.runtime(row.key).cards(row.incarnation):
                yield row, card


def _is_at_work(sessions: Sessions, row: SessionRow) -> bool:
    usage = sessions.runtime(row.key).usage
    percent = usage.gpu_percent if usage is not None else None
    return percent is None or percent >= WORKING_PERCENT


def gpu_seconds(sessions: Sessions) -> float:
    now, name = sessions.clock.now(), accounting.GPU_SECONDS
    rows = sessions.journal.sessions()
    going = (accounting.leaving(row, sessions.gpus_left(row), now) for row in rows)
    return sessions.journal.amount(name) + sum(each.get(name, 0.0) for each in going)


def store_use(sessions: Sessions) -> list[StoreUse]:
    rows: dict[str, list[CheckpointRow]] = defaultdict(list)
    for row in sessions.journal.checkpoints():
        rows[row.key.user].append(row)
    uses = []
    for user, mine in rows.items():
        infos = [row.info for row in mine]
        uses.append(
            StoreUse(
                user=user,
                checkpoints=len(mine),
                logical_bytes=sum(info.logical_bytes for info in infos),
                stored_bytes=kept_bytes(infos),
            )
        )
    return sorted(uses, key=lambda use: (-use.stored_bytes, use.user))

"""Totals of all sessions at this moment: GPUs by state, GPU time, and what is stored.

For people and metrics: nothing is decided by them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.kept_bytes import kept_bytes
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane import accounting
from jupyterhub_gpu_reclaim.controlplane.accounting import (
    GpuCount,
    MetricsSnapshot,
)
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import Keeping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.common.models import GpuSample
    from jupyterhub_gpu_reclaim.controlplane.decide.sampler import SessionSampler
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


#: Percent of a card from which it is at work (``IdlePolicy.busy_gpu_percent``).
WORKING_PERCENT = 5.0


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
            for card in sessions.runtime(row.key).cards:
                yield row, card


def _is_at_work(sessions: Sessions, row: SessionRow) -> bool:
    usage = sessions.runtime(row.key).usage
    percent = usage.gpu_percent if usage is not None else None
    return percent is None or percent >= WORKING_PERCENT


def gpu_seconds(sessions: Sessions) -> float:
    now, rows = sessions.clock.now(), sessions.journal.sessions()
    over = sessions.journal.noted(NoteKind.RECLAIMED, "") or 0.0
    going = (accounting.left(row, sessions.gpus_left(row), now) for row in rows)
    return over + sum(going)


def stored_bytes(sessions: Sessions) -> int:
    return kept_bytes(row.info for row in sessions.journal.checkpoints())


def snapshot(sessions: Sessions, sampler: SessionSampler) -> MetricsSnapshot:
    kept, rows = sessions.journal.checkpoints(), sessions.journal.sessions()
    sampled, now = sampler.sampled, sessions.clock.now()
    runtimes = [sessions.runtime(row.key) for row in rows]
    napping = [each.napping.nap for each in runtimes if each.napping is not None]
    return MetricsSnapshot(
        phases=dict(Counter(sessions.runtime(row.key).phase(row) for row in rows)),
        counters=sessions.counters,
        checkpoints=len(kept),
        stored_bytes=kept_bytes(each.info for each in kept),
        sample_age=None if sampled is None else now - sampled,
        watched=sampler.watched,
        waiting=sum(each.waiting is not None for each in runtimes),
        napping_bytes=sum(nap.bytes for nap in napping if nap),
        suspended_bytes=sum(
            c.info.logical_bytes for c in kept if c.keeping is Keeping.CURRENT
        ),
        drained=sessions.drains.counts(),
        gpus=gpus(sessions),
        gpu_seconds=gpu_seconds(sessions),
    )

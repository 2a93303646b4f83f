"""Totals of all sessions at this moment: GPUs by state, GPU time, and what is stored.

For people and metrics: nothing is decided by them.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from jupyterhub_gpu_reclaim.common.kept_bytes import kept_bytes
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.accounting import (
    FREED,
    GPU_STATES,
    IDLE,
    IN_USE,
    KEPT,
    GpuCount,
    left,
)
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from jupyterhub_gpu_reclaim.common.models import GpuSample
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


PREFIX = "jupyterhub_gpu_reclaim_"
#: Percent of a card from which it is at work (``IdlePolicy.busy_gpu_percent``).
WORKING_PERCENT = 5.0


def gpus(sessions: Sessions) -> list[GpuCount]:
    """Return the GPUs by node, model and state."""
    now = sessions.clock.now()
    rows = sessions.journal.sessions()
    states: dict[str, tuple[str, str, str]] = {}
    for row, card in _cards(sessions, rows):
        is_kept = (row.kept_until or 0.0) > now or row.opted_out_by
        state = KEPT if is_kept else IDLE
        state = IN_USE if _is_at_work(sessions, row) else state
        _, _, before = states.get(card.uuid, ("", "", state))
        # One that works is enough, and so is one that is kept.
        state = min(state, before, key=GPU_STATES.index)
        states[card.uuid] = (row.node, card.name, state)
    found: dict[tuple[str, str, str], float] = dict(Counter(states.values()))
    for row in rows:
        if row.phase is Phase.SUSPENDED and (held := sessions.gpus_of(row)):
            kind = (row.node, held[0].name, FREED)
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
    going = (left(row, sessions.gpus_left(row), now) for row in rows)
    return over + sum(going)


def stored_bytes(sessions: Sessions) -> int:
    return kept_bytes(row.info for row in sessions.journal.checkpoints())


def _family(
    kind: type[Any], name: str, about: str, found: Any, labels: str = ""
) -> Metric:
    """Make a family of one value, or of rows with labels; None is not known."""
    family: Any = kind(PREFIX + name, about, labels=labels.split())
    for *values, number in found if labels else [(found,)]:
        if number is None:
            continue
        family.add_metric(values, number)
    return family  # type: ignore[no-any-return]


gauge = partial(_family, GaugeMetricFamily)


class Totals(Collector):
    """All sessions as metrics, at the moment of the scrape."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def collect(self) -> Iterator[Metric]:
        sessions, sampled = self._sessions, self._sessions.sampled
        rows = sessions.journal.sessions()
        runtimes = [sessions.runtime(row.key) for row in rows]
        phases = Counter(sessions.runtime(row.key).phase(row) for row in rows)
        naps = [each.nap for each in runtimes]
        yield gauge(
            "sessions",
            "Sessions, by phase.",
            [(phase.value, phases[phase]) for phase in Phase],
            "phase",
        )
        yield gauge(
            "sessions_watched",
            "Sessions with recent samples; the others are not suspended.",
            sum(each.window is not None for each in sessions.runtimes.values()),
        )
        yield gauge(
            "sample_age_seconds",
            "Time since the agent last told what the sessions do; absent until it has.",
            None if sampled is None else sessions.clock.now() - sampled,
        )
        yield from sessions.counters.collect()
        yield gauge(
            "sessions_waiting",
            "Sessions in the queue for a GPU.",
            sum(each.waiting is not None for each in runtimes),
        )
        yield _family(
            CounterMetricFamily,
            "gpu_seconds_reclaimed",
            "GPUs times seconds that suspended sessions have left to others, by the"
            " GPUs that each held when it was suspended; it lasts over restarts.",
            gpu_seconds(sessions),
        )
        yield gauge(
            "drained_sessions",
            "Sessions of nodes that are being drained, by state: waiting, saving,"
            " saved, refused.",
            [(*of, count) for of, count in sorted(sessions.drains.counts().items())],
            "node state",
        )
        kept = sessions.journal.checkpoints()
        yield gauge("checkpoints", "Checkpoints that are kept.", len(kept))
        yield gauge(
            "checkpoints_stored_bytes",
            "Bytes that they take in the store.",
            stored_bytes(sessions),
        )
        yield gauge(
            "napping_gpu_memory_bytes",
            "GPU memory that is free because the sessions which had it nap now; it is"
            " in the machines' memory.",
            sum(nap.bytes for nap in naps if nap is not None),
        )
        yield gauge(
            "gpus",
            "GPUs that sessions hold, by what they do with them (in_use; idle; kept:"
            " idle, and a person keeps the session from being suspended), and those"
            " that suspended sessions had held (freed).",
            gpus(sessions),
            "node model state",
        )

"""Counts of what has happened, and totals of all sessions at this moment.

For people and metrics: nothing is decided by them. GPU time lasts: a session's share of
it is written in the transaction that ends its suspension, so that a crash can neither
lose a share nor count it twice.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from jupyterhub_gpu_reclaim.common import endings
from jupyterhub_gpu_reclaim.common.kept_bytes import kept_bytes
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import LIVE, Keeping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from jupyterhub_gpu_reclaim.common.models import GpuSample, Step
    from jupyterhub_gpu_reclaim.controlplane.decide.sampler import SessionSampler
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


PREFIX = "jupyterhub_gpu_reclaim_"
#: Percent of a card from which it is at work (``IdlePolicy.busy_gpu_percent``).
WORKING_PERCENT = 5.0

#: Upper bounds of the histograms of seconds.
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
#: States of a GPU that sessions hold: in use if one of them works, or nothing is known
#: of it; else kept, if somebody wants that, or idle. Freed are those which sessions had
#: held that are suspended now, whoever uses them since.
GPU_STATES = (IN_USE, KEPT, IDLE, FREED) = ("in_use", "kept", "idle", "freed")
#: Causes of suspends; ``request`` is a person's.
CAUSES = ("idle", "node_drains", "pressure", "request")
OPERATIONS = ("suspend", "resume", "save", "nap", "wake")
OUTCOMES = ("ok", "failed")


class Counters:
    """What has happened since the start; labels are bounded sets of our own words."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        space = "jupyterhub_gpu_reclaim"
        counter = partial(
            prometheus_client.Counter, namespace=space, registry=self.registry
        )
        seconds = partial(
            prometheus_client.Histogram,
            namespace=space,
            registry=self.registry,
            buckets=BUCKETS,
        )
        self.operations = counter(
            "operations",
            "Suspends, resumes, naps and wakes that ended, by outcome; a session that"
            " is woken by its use counts as a wake.",
            ["operation", "outcome"],
        )
        self.failures = counter(
            "operation_failures",
            "Suspends, resumes, naps and wakes that failed, by reason code.",
            ["operation", "code"],
        )
        self.causes = counter(
            "suspends",
            "Suspends that were begun, by cause: idle, node_drains, pressure (another"
            " waited for a GPU), request (a person's).",
            ["cause"],
        )
        self.ends = counter(
            "sessions_ended",
            "Sessions whose programs ended although the Hub had not stopped them, by"
            " reason code.",
            ["code"],
        )
        self.whole = seconds(
            "operation_duration_seconds",
            "Time that a whole suspend, until its checkpoint is committed, or a whole"
            " resume, until the session runs, took that succeeded; a resume with the"
            " time that it waited for a GPU.",
            ["operation"],
        )
        self.still = seconds(
            "session_frozen_seconds",
            "Time that a session stood still while it was saved.",
        )
        self.steps = seconds(
            "step_duration_seconds",
            "Time that one step of a suspend, a resume, a save, a nap or a wake took.",
            ["operation", "step"],
        )
        self.notices_unsent = counter(
            "notices_unsent",
            "Notices that the messenger has not taken; each is in the log.",
        )
        self.waits = seconds(
            "wait_duration_seconds",
            "Time in the queue for a GPU, however it ended.",
        )
        self.logical_bytes = counter(
            "saved_logical_bytes",
            "Bytes that suspended sessions held, summed over all suspends.",
        )
        self.stored_bytes = counter(
            "saved_stored_bytes", "Bytes that were written for them."
        )
        self._begin()

    def _begin(self) -> None:
        """Begin each at 0: in a series that begins with 1 nobody sees an increase."""
        for operation in OPERATIONS:
            for outcome in OUTCOMES:
                self.operations.labels(operation, outcome)
            for reason in Reason:
                self.failures.labels(operation, reason.value)
        for cause in CAUSES:
            self.causes.labels(cause)
        for reason in endings.REASONS:
            self.ends.labels(reason.value)
        for operation in ("suspend", "resume"):
            self.whole.labels(operation)

    def ended(self, operation: str, outcome: str, code: str = "") -> None:
        self.operations.labels(operation, outcome).inc()
        if code:
            self.failures.labels(operation, code).inc()

    def step(self, operation: str, step: Step) -> None:
        if step.state == "done":
            self.steps.labels(operation, step.step).observe(step.seconds)


class GpuCount(NamedTuple):
    """Number of GPUs of one kind in one state; shared ones count by their share."""

    node: str  #: empty: the Hub's own machine
    model: str
    state: str  #: one of ``GPU_STATES``
    number: float


def left(row: SessionRow, gpus: float, now: float, phase: Phase | None = None) -> float:
    """GPUs times seconds; a session counts with the GPUs it held when saved."""
    if row.phase is not Phase.SUSPENDED or phase is Phase.SUSPENDED:
        return 0.0
    return gpus * max(0.0, now - row.since)


def took(counters: Counters, before: SessionRow, row: SessionRow, now: float) -> None:
    """A suspend ends when its checkpoint is committed, a resume when it runs."""
    if before.phase is Phase.SUSPENDING and row.phase is Phase.RELEASING:
        counters.whole.labels("suspend").observe(now - before.since)
    elif before.phase is Phase.RESUMING and row.phase in LIVE:
        counters.whole.labels("resume").observe(now - before.since)


def gpus(sessions: Sessions) -> list[GpuCount]:
    """Return the GPUs by node, model and state; a MIG instance is one of its own."""
    now = sessions.clock.now()
    rows = sessions.journal.sessions()
    states: dict[tuple[str, int | None], tuple[str, str, str]] = {}
    for row, card in _cards(sessions, rows):
        name = (card.uuid, card.instance)
        is_kept = (row.kept_until or 0.0) > now or row.opted_out_by
        state = KEPT if is_kept else IDLE
        state = IN_USE if _is_at_work(sessions, row) else state
        _, _, before = states.get(name, ("", "", state))
        # One that works is enough, and so is one that is kept.
        state = min(state, before, key=GPU_STATES.index)
        states[name] = (row.node, card.name, state)
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

    def __init__(self, sessions: Sessions, sampler: SessionSampler) -> None:
        self._sessions = sessions
        self._sampler = sampler

    def collect(self) -> Iterator[Metric]:
        sessions, sampled = self._sessions, self._sampler.sampled
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
            self._sampler.watched,
        )
        yield gauge(
            "sample_age_seconds",
            "Time since the agent last told what the sessions do; absent until it has.",
            None if sampled is None else sessions.clock.now() - sampled,
        )
        yield from sessions.counters.registry.collect()
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
        yield from self._bytes()
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

    def _bytes(self) -> Iterator[Metric]:
        kept = self._sessions.journal.checkpoints()
        current = (row.info for row in kept if row.keeping is Keeping.CURRENT)
        yield gauge(
            "suspended_memory_bytes",
            "Memory, GPUs' included, that is free because the sessions which had it"
            " are suspended now.",
            sum(info.logical_bytes for info in current),
        )
        yield gauge("checkpoints", "Checkpoints that are kept.", len(kept))
        yield gauge(
            "checkpoints_stored_bytes",
            "Bytes that they take in the store.",
            stored_bytes(self._sessions),
        )

"""The control plane's counts as Prometheus metrics.

Everything is read at the moment of the scrape, nothing is kept here. Label values that
are known beforehand are there from the start with 0, so that a rate over them never
misses the first event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.common import endings
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model.accounting import (
    BUCKETS,
    CAUSES,
    WAITS,
    Histogram,
)
from jupyterhub_gpu_reclaim.service import node_metrics
from jupyterhub_gpu_reclaim.service.node_metrics import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client import Metric

    from jupyterhub_gpu_reclaim.common.node_status import NodeHealth
    from jupyterhub_gpu_reclaim.controlplane.model.accounting import MetricsSnapshot

OPERATIONS = ("suspend", "resume", "save", "nap", "wake")
OUTCOMES = ("ok", "failed")
#: The agent's steps, as ``capture.py``, ``restore.py``, ``save.py`` and ``nap.py`` in
#: ``node/workflows`` name them.
STEPS = {
    "suspend": (
        "preflight",
        "gpu",
        "connections",
        "dump",
        "files",
        "rehearsal",
        "commit",
    ),
    "resume": ("check", "files", "programs", "memory", "gpu", "answer"),
    "save": (
        "preflight",
        "gpu",
        "dump",
        "files",
        "thaw",
        "save",
        "rehearsal",
        "commit",
    ),
    "nap": ("preflight", "gpu"),
    "wake": ("room", "gpu"),
}


class Exporter(Collector):
    """Turns one snapshot into metric families."""

    def __init__(
        self,
        snapshot: Callable[[], MetricsSnapshot],
        nodes: Callable[[], Sequence[NodeHealth]],
    ) -> None:
        self._snapshot = snapshot
        self._nodes = nodes

    def describe(self) -> list[Metric]:
        """Describe nothing, so that the registry does not scrape at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        yield _info()
        yield from _sessions(now)
        yield from _operations(now)
        yield _ends(now)
        yield from _durations(now)
        yield from _queue(now)
        yield from _risks(now)
        yield from _bytes(now)
        yield _gpus(now)
        yield from node_metrics.families(self._nodes())


def registry(
    snapshot: Callable[[], MetricsSnapshot],
    nodes: Callable[[], Sequence[NodeHealth]] = list,
) -> CollectorRegistry:
    """A registry of its own with the exporter, the process and nothing else."""
    made = CollectorRegistry(auto_describe=False)
    made.register(Exporter(snapshot, nodes))
    return made


def _info() -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "build_info", "Always 1; says which version runs.", labels=["version"]
    )
    family.add_metric([__version__], 1)
    return family


def _sessions(now: MetricsSnapshot) -> Iterator[Metric]:
    phases = GaugeMetricFamily(
        PREFIX + "sessions", "Sessions, by phase.", labels=["phase"]
    )
    for phase in Phase:
        phases.add_metric([phase.value], now.phases.get(phase, 0))
    yield phases
    yield GaugeMetricFamily(
        PREFIX + "sessions_watched",
        "Sessions with recent samples; the others are not suspended.",
        value=now.watched,
    )
    yield GaugeMetricFamily(
        PREFIX + "sessions_kept",
        "Sessions that a person keeps from being suspended, for a time or for good.",
        value=now.kept,
    )
    age = GaugeMetricFamily(
        PREFIX + "sample_age_seconds",
        "Time since the agent last told what the sessions do; absent until it has.",
    )
    if now.sample_age is not None:
        age.add_metric([], now.sample_age)
    yield age


def _risks(now: MetricsSnapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        PREFIX + "save_every_seconds",
        "Time between two save points of a session, as set for all; 0: by order only.",
        value=now.save_every,
    )
    at_risk = GaugeMetricFamily(
        PREFIX + "at_risk_seconds",
        "Time since the state to which each session that runs could be brought back,"
        " in all, of those that were used since.",
        labels=["gpu"],
    )
    longest = GaugeMetricFamily(
        PREFIX + "at_risk_longest_seconds",
        "The same of the session with the longest such time.",
        labels=["gpu"],
    )
    for gpu in (True, False):
        found = [risk.seconds for risk in now.risks if risk.gpu is gpu]
        label = ["yes" if gpu else "no"]
        at_risk.add_metric(label, sum(found))
        longest.add_metric(label, max(found, default=0.0))
    yield at_risk
    yield longest
    drained = GaugeMetricFamily(
        PREFIX + "drained_sessions",
        "Sessions of nodes that are being drained, by state: waiting, saving, saved,"
        " refused.",
        labels=["node", "state"],
    )
    for (node, state), count in sorted(now.drained.items()):
        drained.add_metric([node, state], count)
    yield drained


def _operations(now: MetricsSnapshot) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        PREFIX + "operations",
        "Suspends, resumes, naps and wakes that ended, by outcome; a session that is"
        " woken by its use counts as a wake.",
        labels=["operation", "outcome"],
    )
    for operation in OPERATIONS:
        for outcome in OUTCOMES:
            count = now.counters.operations[operation, outcome]
            ended.add_metric([operation, outcome], count)
    yield ended
    begun = CounterMetricFamily(
        PREFIX + "suspends",
        "Suspends that were begun, by cause: idle, node_drains, pressure (somebody"
        " waited for a GPU), request (a person's).",
        labels=["cause"],
    )
    for cause in sorted({*CAUSES, *now.counters.causes}):
        begun.add_metric([cause], now.counters.causes[cause])
    yield begun
    failed = CounterMetricFamily(
        PREFIX + "operation_failures",
        "Suspends, resumes, naps and wakes that failed, by reason code.",
        labels=["operation", "code"],
    )
    # Each begins at 0: Prometheus sees no increase in a series that begins with 1.
    known = {(one, reason.value) for one in OPERATIONS for reason in Reason}
    for operation, code in sorted(known | set(now.counters.failures)):
        count = now.counters.failures[operation, code]
        failed.add_metric([operation, code], count)
    yield failed


def _ends(now: MetricsSnapshot) -> Metric:
    family = CounterMetricFamily(
        PREFIX + "sessions_ended",
        "Sessions whose programs ended although nobody had the Hub stop them, by"
        " reason code.",
        labels=["code"],
    )
    for code in sorted({*now.counters.ends, *(one.value for one in endings.REASONS)}):
        family.add_metric([code], now.counters.ends[code])
    return family


def _durations(now: MetricsSnapshot) -> Iterator[Metric]:
    whole = HistogramMetricFamily(
        PREFIX + "operation_duration_seconds",
        "Time that a whole suspend, until its checkpoint is committed, or a whole"
        " resume, until the session runs, took that succeeded; a resume with the time"
        " that it waited for a GPU.",
        labels=["operation"],
    )
    for operation in ("suspend", "resume"):
        _add(whole, [operation], now.counters.whole.get(operation, Histogram()))
    yield whole
    still = HistogramMetricFamily(
        PREFIX + "session_frozen_seconds",
        "Time that a session stood still while it was saved.",
    )
    _add(still, [], now.counters.still)
    yield still
    family = HistogramMetricFamily(
        PREFIX + "step_duration_seconds",
        "Time that one step of a suspend, a resume, a save, a nap or a wake took.",
        labels=["operation", "step"],
    )
    usual = {(operation, step) for operation in STEPS for step in STEPS[operation]}
    for operation, step in sorted(usual | now.counters.steps.keys()):
        seen = now.counters.steps.get((operation, step), Histogram())
        _add(family, [operation, step], seen)
    yield family


def _gpus(now: MetricsSnapshot) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "gpus",
        "GPUs that sessions hold, by what they do with them (in_use; idle; kept: idle,"
        " and somebody keeps the session from being suspended), and those that"
        " suspended sessions had held (freed).",
        labels=["node", "model", "state"],
    )
    for node, model, state, number in now.gpus:
        family.add_metric([node, model, state], number)
    return family


def _add(family: HistogramMetricFamily, labels: list[str], seen: Histogram) -> None:
    buckets = [
        (str(bound), float(count))
        for bound, count in zip(BUCKETS, seen.buckets, strict=True)
    ]
    buckets.append(("+Inf", float(seen.count)))
    family.add_metric(labels, buckets=buckets, sum_value=seen.total)


def _queue(now: MetricsSnapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        PREFIX + "sessions_waiting",
        "Sessions in the queue for a GPU.",
        value=now.waiting,
    )
    yield GaugeMetricFamily(
        PREFIX + "gpus_crowded",
        "GPUs that need fewer seats: three or more of their sessions woke in the last"
        " hour and found none that could nap for them.",
        value=now.crowded_gpus,
    )
    yield CounterMetricFamily(
        PREFIX + "wakes_unserved",
        "Wakes that found their GPU full, and no session there that could nap for"
        " them; they waited for one that ends, naps or is suspended.",
        value=now.counters.wakes_unserved,
    )
    yield CounterMetricFamily(
        PREFIX + "notices_unsent",
        "Notices that the webhook or the messenger has not taken; each is in the log.",
        value=now.counters.notices_unsent,
    )
    waits = HistogramMetricFamily(
        PREFIX + "wait_duration_seconds",
        "Time in the queue for a GPU, by how it ended: served, left (called off),"
        " expired (the time limit).",
        labels=["outcome"],
    )
    for outcome in WAITS:
        _add(waits, [outcome], now.counters.waits.get(outcome, Histogram()))
    yield waits
    yield CounterMetricFamily(
        PREFIX + "gpu_seconds_reclaimed",
        "GPUs times seconds that suspended sessions have left to others, by the GPUs"
        " that each held when it was suspended; it lasts over restarts.",
        value=now.gpu_seconds,
    )


def _bytes(now: MetricsSnapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        PREFIX + "suspended_memory_bytes",
        "Memory, GPUs' included, that is free because the sessions which had it are"
        " suspended now.",
        value=now.suspended_bytes,
    )
    yield GaugeMetricFamily(
        PREFIX + "napping_gpu_memory_bytes",
        "GPU memory that is free because the sessions which had it nap now; it is in"
        " the machines' memory.",
        value=now.napping_bytes,
    )
    yield CounterMetricFamily(
        PREFIX + "saved_logical_bytes",
        "Bytes that suspended sessions held, summed over all suspends.",
        value=now.counters.logical_bytes,
    )
    yield CounterMetricFamily(
        PREFIX + "saved_stored_bytes",
        "Bytes that were written for them.",
        value=now.counters.stored_bytes,
    )
    yield CounterMetricFamily(
        PREFIX + "saved_deduplicated_bytes",
        "Bytes that were in the store already and were not written again.",
        value=now.counters.deduplicated_bytes,
    )
    yield GaugeMetricFamily(
        PREFIX + "checkpoints", "Checkpoints that are kept.", value=now.checkpoints
    )
    yield GaugeMetricFamily(
        PREFIX + "checkpoints_stored_bytes",
        "Bytes that they take in the store.",
        value=now.stored_bytes,
    )

"""The control plane's counts, and the nodes, as Prometheus metrics.

Everything is read at the moment of the scrape, nothing is kept here. Label values that
are known beforehand are there from the start with 0, so that a rate over them never
misses the first event.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.common import endings
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.accounting import CAUSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client import Metric

    from jupyterhub_gpu_reclaim.common.node_status import NodeHealth
    from jupyterhub_gpu_reclaim.controlplane.accounting import Counters, MetricsSnapshot

PREFIX = "jupyterhub_gpu_reclaim_"
OPERATIONS = ("suspend", "resume", "save", "nap", "wake")
OUTCOMES = ("ok", "failed")
#: An agent that answers may be unable to save sessions (unready).
AGENT_STATES = ("ready", "unready", "silent")


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
        yield _gauge(
            "build_info",
            "Always 1; says which version runs.",
            [(__version__, 1)],
            "version",
        )
        yield from _sessions(now)
        _known(now.counters)
        yield from now.counters.registry.collect()
        yield from _queue(now)
        yield from _drains(now)
        yield from _bytes(now)
        yield _gauge(
            "gpus",
            "GPUs that sessions hold, by what they do with them (in_use; idle; kept:"
            " idle, and a person keeps the session from being suspended), and those"
            " that suspended sessions had held (freed).",
            now.gpus,
            "node model state",
        )
        yield from _of_nodes(self._nodes())


def registry(
    snapshot: Callable[[], MetricsSnapshot],
    nodes: Callable[[], Sequence[NodeHealth]] = list,
) -> CollectorRegistry:
    """A registry of its own with the exporter, the process and nothing else."""
    disable_created_metrics()  # a second series for each
    made = CollectorRegistry(auto_describe=False)
    made.register(Exporter(snapshot, nodes))
    return made


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


_gauge = partial(_family, GaugeMetricFamily)
_counter = partial(_family, CounterMetricFamily)


def _sessions(now: MetricsSnapshot) -> Iterator[Metric]:
    phases = [(phase.value, now.phases.get(phase, 0)) for phase in Phase]
    yield _gauge("sessions", "Sessions, by phase.", phases, "phase")
    yield _gauge(
        "sessions_watched",
        "Sessions with recent samples; the others are not suspended.",
        now.watched,
    )
    yield _gauge(
        "sample_age_seconds",
        "Time since the agent last told what the sessions do; absent until it has.",
        now.sample_age,
    )


def _drains(now: MetricsSnapshot) -> Iterator[Metric]:
    yield _gauge(
        "drained_sessions",
        "Sessions of nodes that are being drained, by state: waiting, saving, saved,"
        " refused.",
        [(*labels, count) for labels, count in sorted(now.drained.items())],
        "node state",
    )


def _known(counters: Counters) -> None:
    """Begin each at 0: Prometheus sees no increase in a series that begins with 1."""
    for operation in OPERATIONS:
        for outcome in OUTCOMES:
            counters.operations.labels(operation, outcome)
        for reason in Reason:
            counters.failures.labels(operation, reason.value)
    for cause in CAUSES:
        counters.causes.labels(cause)
    for reason in endings.REASONS:
        counters.ends.labels(reason.value)
    for operation in ("suspend", "resume"):
        counters.whole.labels(operation)


def _queue(now: MetricsSnapshot) -> Iterator[Metric]:
    yield _gauge(
        "sessions_waiting",
        "Sessions in the queue for a GPU.",
        now.waiting,
    )
    yield _counter(
        "gpu_seconds_reclaimed",
        "GPUs times seconds that suspended sessions have left to others, by the GPUs"
        " that each held when it was suspended; it lasts over restarts.",
        now.gpu_seconds,
    )


def _bytes(now: MetricsSnapshot) -> Iterator[Metric]:
    yield _gauge(
        "suspended_memory_bytes",
        "Memory, GPUs' included, that is free because the sessions which had it are"
        " suspended now.",
        now.suspended_bytes,
    )
    yield _gauge(
        "napping_gpu_memory_bytes",
        "GPU memory that is free because the sessions which had it nap now; it is in"
        " the machines' memory.",
        now.napping_bytes,
    )
    yield _gauge("checkpoints", "Checkpoints that are kept.", now.checkpoints)
    yield _gauge(
        "checkpoints_stored_bytes",
        "Bytes that they take in the store.",
        now.stored_bytes,
    )


def _of_nodes(nodes: Sequence[NodeHealth]) -> Iterator[Metric]:
    states = Counter(_state(node) for node in nodes)
    yield _gauge(
        "agents",
        "Agents: ready; unready: they answer, and cannot save sessions; silent.",
        [(state, states[state]) for state in AGENT_STATES],
        "state",
    )
    known = [(node.node, node.status) for node in nodes if node.status is not None]
    cards = Counter(
        (node, card.name) for node, status in known for card in status.cards or ()
    )
    yield _gauge(
        "gpus_present",
        "GPUs that a node has, used or not, as its agent last said.",
        [(*labels, count) for labels, count in sorted(cards.items())],
        "node model",
    )
    yield _gauge(
        "store_free_bytes",
        "Room in the store, as seen from a node; absent where the store has no bound"
        " that it tells, as an object store.",
        [(node, status.store_free) for node, status in known],
        "node",
    )
    yield _gauge(
        "state_free_bytes",
        "Room on the disk of an agent's own records.",
        [(node, status.state_free) for node, status in known],
        "node",
    )
    yield _gauge(
        "node_faults",
        "Always 1: something keeps a node from working now. The code is that of the"
        " how-to of messages, the sentence is the page's.",
        [
            (one.node, each.code, each.message, 1)
            for one in nodes
            for each in one.faults
        ],
        "node code sentence",
    )


def _state(node: NodeHealth) -> str:
    if node.silent_since is not None or node.status is None:
        return "silent"
    return "ready" if node.ready else "unready"

"""The metrics of Prometheus: the control plane's totals, and the nodes.

Everything is read at the moment of the scrape, nothing is kept here. Label values that
are known beforehand are there from the start with 0, so that a rate over them never
misses the first event.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.registry import Collector

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.controlplane.metrics import gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client import Metric

    from jupyterhub_gpu_reclaim.common.node_status import NodeHealth

#: An agent that answers may be unable to save sessions (unready).
AGENT_STATES = ("ready", "unready", "silent")


def registry(
    totals: Collector, nodes: Callable[[], Sequence[NodeHealth]] = list
) -> CollectorRegistry:
    """A registry of its own with the totals, the nodes and nothing else."""
    disable_created_metrics()  # a second series for each
    made = CollectorRegistry(auto_describe=False)
    made.register(totals)
    made.register(Nodes(nodes))
    return made


@dataclass(frozen=True, eq=False)
class Nodes(Collector):
    nodes: Callable[[], Sequence[NodeHealth]]

    def collect(self) -> Iterator[Metric]:
        yield gauge(
            "build_info",
            "Always 1; says which version runs.",
            [(__version__, 1)],
            "version",
        )
        nodes = self.nodes()
        states = Counter(_state(node) for node in nodes)
        yield gauge(
            "agents",
            "Agents: ready; unready: they answer, and cannot save sessions; silent.",
            [(state, states[state]) for state in AGENT_STATES],
            "state",
        )
        known = [(node.node, node.status) for node in nodes if node.status is not None]
        cards = Counter(
            (node, card.name) for node, status in known for card in status.cards or ()
        )
        yield gauge(
            "gpus_present",
            "GPUs that a node has, used or not, as its agent last said.",
            [(*labels, count) for labels, count in sorted(cards.items())],
            "node model",
        )
        yield gauge(
            "store_free_bytes",
            "Room in the store, as seen from a node; absent where the store has no"
            " bound that it tells, as an object store.",
            [(node, status.store_free) for node, status in known],
            "node",
        )
        yield gauge(
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
    return "ready" if node.status.ready else "unready"

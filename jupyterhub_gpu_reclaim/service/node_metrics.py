"""The nodes as Prometheus metrics: agents, cards, and room on disks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import Metric

    from jupyterhub_gpu_reclaim.common.node_status import NodeHealth

PREFIX = "jupyterhub_gpu_reclaim_"
#: An agent that answers may be unable to save sessions (unready).
AGENT_STATES = ("ready", "unready", "silent")


def families(nodes: Sequence[NodeHealth]) -> Iterator[Metric]:
    """Yield the nodes' families, of one moment; what is not known is left out."""
    agents = GaugeMetricFamily(
        PREFIX + "agents",
        "Agents: ready; unready: they answer, and cannot save sessions; silent.",
        labels=["state"],
    )
    states = Counter(_state(node) for node in nodes)
    for state in AGENT_STATES:
        agents.add_metric([state], states[state])
    yield agents
    present = GaugeMetricFamily(
        PREFIX + "gpus_present",
        "GPUs that a node has, whoever uses them, as its agent last said.",
        labels=["node", "model"],
    )
    store = GaugeMetricFamily(
        PREFIX + "store_free_bytes",
        "Room in the store, as seen from a node; absent where the store has no bound"
        " that it tells, as an object store.",
        labels=["node"],
    )
    capacity = GaugeMetricFamily(
        PREFIX + "store_capacity_bytes",
        "Size of the place that the store is in, whatever else is there; absent like"
        " its room.",
        labels=["node"],
    )
    faults = GaugeMetricFamily(
        PREFIX + "node_faults",
        "Always 1: something keeps a node from working now. The code is that of the"
        " how-to of messages, the sentence is the page's.",
        labels=["node", "code", "sentence"],
    )
    records = GaugeMetricFamily(
        PREFIX + "state_free_bytes",
        "Room on the disk of an agent's own records.",
        labels=["node"],
    )
    for node in nodes:
        for fault in node.faults:
            faults.add_metric([node.node, fault.code, fault.message], 1)
        status = node.status
        if status is None:
            continue
        models = Counter(card.name for card in status.cards or ())
        for model, count in sorted(models.items()):
            present.add_metric([node.node, model], count)
        if status.store_free is not None:
            store.add_metric([node.node], status.store_free)
        if status.store_capacity is not None:
            capacity.add_metric([node.node], status.store_capacity)
        if status.state_free is not None:
            records.add_metric([node.node], status.state_free)
    yield from (present, store, capacity, faults, records)


def _state(node: NodeHealth) -> str:
    if node.silent_since is not None or node.status is None:
        return "silent"
    return "ready" if node.ready else "unready"

"""The strip at the top of the managers' pages: agents, Hub, store and service.

Pure. Of agents a number; of the others a sentence where something is not well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.common import text as words
from jupyterhub_gpu_reclaim.common.node_status import STORE_CODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.node_status import NodeHealth

#: The control plane's names of parts that do not answer.
_HUB, _STORE = "Hub", "agent's store"
#: Free room in the store, in bytes, below which a warning is due.
LITTLE_ROOM = 20 * 10**9


@dataclass(frozen=True)
class PartHealth:
    """A part of the strip."""

    name: str
    words: str
    tone: str  #: good, warn or bad
    page: str = ""  #: page of the service, which tells more


def strip(
    nodes: Sequence[NodeHealth],
    silent: Sequence[str],
    warnings: Sequence[str] = (),
) -> list[PartHealth]:
    """The parts, in the order of the page."""
    hub = ("no answer", "bad") if _HUB in silent else ("answers", "good")
    return [
        PartHealth("Agents", *_agents(nodes), "nodes"),
        PartHealth("Hub", *hub),
        PartHealth("Store", *_store(nodes, silent), "store"),
        PartHealth("Service", __version__, "good"),
        *(PartHealth("Configuration", warning, "warn") for warning in warnings),
    ]


def _agents(nodes: Sequence[NodeHealth]) -> tuple[str, str]:
    # Which it is, and its cure, "Needs attention" and the page of the nodes say.
    ready = sum(node.ready and node.drain is None for node in nodes)
    if ready == len(nodes):
        return (f"{ready} ready", "good") if nodes else ("none seen yet", "warn")
    told = f"{ready} of {len(nodes)} ready"
    if drains := [node.drain.since for node in nodes if node.drain is not None]:
        told += f", closed since {words.moment(min(drains))}, until undrain"
    silent = any(node.silent_since is not None for node in nodes)
    return told, "bad" if silent else "warn"


def _store(nodes: Sequence[NodeHealth], silent: Sequence[str]) -> tuple[str, str]:
    if nodes and all(node.silent_since is not None for node in nodes):
        return "not known while no agent answers", "bad"
    for node in nodes:
        if faults := [each for each in node.faults if each.code in STORE_CODES]:
            seen = f" (as {node.node} sees it)" if node.node else ""
            return faults[0].message.removesuffix(".") + seen, "bad"
    if _STORE in silent:
        return "no answer", "bad"
    rooms = [
        (node.status.store_free, node.status.store_capacity or 0)
        for node in nodes
        if node.status is not None and node.status.store_free is not None
    ]
    if not rooms:  # no bound is known
        return "answers", "good"
    free, capacity = min(rooms)
    tone = "good" if free >= LITTLE_ROOM else "warn"
    return f"{words.room(free, capacity)} free", tone

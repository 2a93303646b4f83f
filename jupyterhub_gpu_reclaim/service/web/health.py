"""The strip at the top of the managers' pages: agents, Hub, store and service.

Pure. One word where all is well, and a sentence where something is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.common import text as words
from jupyterhub_gpu_reclaim.common.node_status import STORE_CODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.models import Finding
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
    now: float,
    warnings: Sequence[str] = (),
) -> list[PartHealth]:
    """The parts, in the order of the page."""
    hub = ("no answer", "bad") if _HUB in silent else ("answers", "good")
    return [
        PartHealth("Agents", *_agents(nodes, now), "nodes"),
        PartHealth("Hub", *hub),
        PartHealth("Store", *_store(nodes, silent), "store"),
        PartHealth("Service", __version__, "good"),
        *(PartHealth("Configuration", warning, "warn") for warning in warnings),
    ]


def called(node: str) -> str:
    """A node's name for people."""
    return node or "this machine"


def _agents(nodes: Sequence[NodeHealth], now: float) -> tuple[str, str]:
    if silent := [node for node in nodes if node.silent_since is not None]:
        first = max(silent, key=lambda node: now - (node.silent_since or now))
        since = words.duration(now - (first.silent_since or now))
        return f"{called(first.node)} has been silent for {since}{_more(silent)}", "bad"
    if drains := [node.drain for node in nodes if node.drain is not None]:
        drain = min(drains, key=lambda drain: drain.since)
        name, since = called(drain.node), words.moment(drain.since)
        closed = f"{name} has been closed since {since}, until undrain"
        return closed + _more(drains), "warn"
    if unfit := [node for node in nodes if not node.ready]:
        name = called(unfit[0].node)
        return f"{name} cannot suspend sessions{_more(unfit)}", "warn"
    if not nodes:
        return "none seen yet", "warn"
    return f"{len(nodes)} ready", "good"


def _more(found: Sequence[object]) -> str:
    return f", and {len(found) - 1} more" if len(found) > 1 else ""


def _store(nodes: Sequence[NodeHealth], silent: Sequence[str]) -> tuple[str, str]:
    if nodes and all(node.silent_since is not None for node in nodes):
        return "not known while no agent answers", "bad"
    for node in nodes:
        if fault := store_fault([node]):
            seen = f" (as {node.node} sees it)" if node.node else ""
            return fault.message.removesuffix(".") + seen, "bad"
    if _STORE in silent:
        return "no answer", "bad"
    free, room = store_room(nodes)
    if free is None:
        return "answers", "good"
    return f"{room} free", "good" if free >= LITTLE_ROOM else "warn"


def store_fault(nodes: Sequence[NodeHealth]) -> Finding | None:
    """Return what is wrong with the store, as the first node tells it."""
    faults = (fault for node in nodes for fault in node.faults)
    return next((fault for fault in faults if fault.code in STORE_CODES), None)


def store_room(nodes: Sequence[NodeHealth]) -> tuple[int | None, str]:
    """Room in the store, as the node that has the least tells it, and in words.

    None and no words where no bound is known.
    """
    rooms = [
        (node.status.store_free, node.status.store_capacity or 0)
        for node in nodes
        if node.status is not None and node.status.store_free is not None
    ]
    if not rooms:
        return None, ""
    free, capacity = min(rooms)
    return free, words.room(free, capacity)

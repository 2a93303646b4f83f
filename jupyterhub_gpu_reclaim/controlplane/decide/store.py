"""Settles which store is meant, and what the agents are told of it (law 14). Pure.

An empty place looks alike on the first day and when its volume is not mounted. So an
agent begins a store by order alone, and the order is given only where nobody knows of
one: not the journal, and none of the agents, all of which have answered. An agent's
word holds where the journal was lost; an administrator's (``store adopt``) is higher
than all before, and goes to all agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.node_status import StoreOrder
from jupyterhub_gpu_reclaim.controlplane.model.rows import MeantStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jupyterhub_gpu_reclaim.common.node_status import StoreStatus


class Settled(NamedTuple):
    """The outcome of :func:`settle`."""

    meant: MeantStore | None  #: the store, for the journal
    orders: dict[str, StoreOrder]  #: by node


def settle(
    meant: MeantStore | None,
    told: Mapping[str, StoreStatus],
    *,
    may_begin: bool,
    new_id: Callable[[], str],
) -> Settled:
    """Take the agents' words, and answer them.

    Args:
        meant: what the journal says; None: nothing yet.
        told: what the agents say, by node.
        may_begin: nothing is known that would be in a store, and all agents have
            answered.
        new_id: makes an id that no store has.
    """
    meant = _highest_word(meant, told)
    first = [] if any(each.store for each in told.values()) else _empty_nodes(told)[:1]
    if meant is None and may_begin and first:
        meant = MeantStore(new_id(), 0, begun=False)
    if meant is None:
        return Settled(None, {})
    if not meant.begun:
        order = StoreOrder(store=meant.store, word=meant.word, begin=True)
        return Settled(meant, dict.fromkeys(first, order))
    order = StoreOrder(store=meant.store, word=meant.word)
    late = [
        node
        for node, status in told.items()
        if (status.store, status.word) != (meant.store, meant.word)
    ]
    return Settled(meant, dict.fromkeys(late, order))


def _highest_word(
    meant: MeantStore | None, told: Mapping[str, StoreStatus]
) -> MeantStore | None:
    """Return the highest word; if two are as high, the journal's, or none."""
    known = {(status.word, status.store) for status in told.values() if status.store}
    floor = meant.word + meant.begun if meant is not None else 0
    higher = {word for word, _ in known if word >= floor}
    if not higher:
        return meant
    top = max(higher)
    stores = {store for word, store in known if word == top}
    return MeantStore(stores.pop(), top, begun=True) if len(stores) == 1 else meant


def _empty_nodes(told: Mapping[str, StoreStatus]) -> list[str]:
    """Names of the nodes that have never known a store and see an empty place."""
    return sorted(node for node, status in told.items() if status.state == "new")

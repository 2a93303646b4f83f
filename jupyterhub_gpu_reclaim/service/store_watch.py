"""Keeps journal and agents agreed on which store is meant (``decide.store``)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.controlplane.decide.store import settle
from jupyterhub_gpu_reclaim.controlplane.journal import store_word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.node_status import (
        NodeHealth,
        StoreOrder,
    )
    from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
    from jupyterhub_gpu_reclaim.service.clients.agent_router import AnyAgent

_log = logging.getLogger(__name__)


class StoreWatch:
    """Settles which store is meant after each round of questions to the agents.

    Args:
        agents: to be told.
        journal: remembers it.
    """

    def __init__(self, agents: AnyAgent, journal: Journal) -> None:
        self._agents = agents
        self._journal = journal

    async def settle(self, nodes: Sequence[NodeHealth]) -> None:
        """Take over what the agents have told, and tell them which store is meant.

        Args:
            nodes: every node, as it was heard of now.
        """
        heard = {each.node: each.status for each in nodes if each.silent_since is None}
        told = {
            node: status.store
            for node, status in heard.items()
            if status is not None and status.store is not None
        }
        known = self._journal.checkpoints()
        before = store_word.meant(self._journal)
        settled = settle(
            before,
            told,
            may_begin=not known and len(told) == len(nodes),
            new_id=lambda: secrets.token_hex(16),
        )
        if settled.meant is not None and settled.meant != before:
            store_word.mean(self._journal, settled.meant)
        orders = settled.orders.items()
        await asyncio.gather(*(self._send_order(node, order) for node, order in orders))

    async def _send_order(self, node: str, order: StoreOrder) -> None:
        try:
            await self._agents.obey_store(node, order)
        except ReclaimError as error:
            _log.warning("%s was not told which store is meant: %s", node, error)

"""Asks what the cluster says of nodes that are about to go, and passes it on."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.service.node_watch import ANSWER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.common.drain import NodeNotice
    from jupyterhub_gpu_reclaim.common.node_status import NodeHealth
    from jupyterhub_gpu_reclaim.service.clients.agent_router import AnyAgent

_log = logging.getLogger(__name__)


class DrainWatch:
    """Asks for notices after each round of questions to the agents."""

    def __init__(
        self, agents: AnyAgent, follow: Callable[[Sequence[NodeNotice]], None]
    ) -> None:
        self._agents = agents
        self._follow = follow
        self._unknown = False  #: the notices are not known now

    async def settle(self, nodes: Sequence[NodeHealth]) -> None:
        del nodes
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                notices = await self._agents.node_notices()
            self._follow(notices)
        except (TimeoutError, ReclaimError) as error:
            if not self._unknown:
                _log.warning("notices of nodes: not heeded now: %s", error)
            self._unknown = True
        else:
            self._unknown = False

"""Gives a node up that is silent to us and to the cluster for long enough.

Kubernetes keeps the pods of a node that does not answer, since they may run: a session
can come back elsewhere only when somebody has said that the node is gone. A cloud's
controller does, or an administrator (``kubectl taint … out-of-service``); where an
administrator has set a time, we do, by force. Two must agree for all of that time: our
agent there does not answer, and the API server says that the node is not ready. Time is
counted on this program's own clock, and anew after its restart.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.service.node_watch import ANSWER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.node_status import NodeHealth
    from jupyterhub_gpu_reclaim.service.clients.agent_router import AnyAgent

_log = logging.getLogger(__name__)


class LostNodes:
    """Gives nodes up, after each round of questions to the agents.

    Args:
        cluster: knows and deletes their pods.
        clock: for the time.
        after: seconds for which a node must be silent and not ready; 0: none is given
            up.
    """

    def __init__(self, cluster: AnyAgent, clock: Clock, after: float) -> None:
        self._cluster = cluster
        self._clock = clock
        self._after = after
        self._since: dict[str, float] = {}

    async def settle(self, nodes: Sequence[NodeHealth]) -> None:
        """Give up the silent nodes that have been down for long enough."""
        if not self._after:
            return
        silent = [each.node for each in nodes if each.silent_since is not None]
        down = await asyncio.gather(*map(self._is_down, silent))
        now = self._clock.monotonic()
        self._since = {
            node: self._since.get(node, now)
            for node, is_down in zip(silent, down, strict=True)
            if is_down
        }
        for node, since in self._since.items():
            if now - since >= self._after:
                await self._forsake(node)

    async def _is_down(self, node: str) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._cluster.is_down(node)
        except (TimeoutError, ReclaimError):
            return False

    async def _forsake(self, node: str) -> None:
        try:
            gone = await self._cluster.forsake(node)
        except ReclaimError as error:
            _log.warning("node %s is lost; its pods are still there: %s", node, error)
            return
        if gone:
            _log.warning(
                "node %s has been silent and not ready for %g s: %d pods of sessions"
                " were deleted by force",
                node,
                self._after,
                gone,
            )

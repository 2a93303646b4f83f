"""Watches the nodes: how each is, and since when its agent is silent.

Every agent is asked every few seconds, none waits for another, and one that does not
answer in that time is silent. It is for people: the managers' page, and the steps of
what is under way on a silent node. Nothing is decided by it (law 5), but which node is
drained.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.node_status import NodeHealth
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.controlplane.drains import Drains
    from jupyterhub_gpu_reclaim.service.clients.agent_router import AnyAgent

_log = logging.getLogger(__name__)

#: Seconds between two rounds, and for an answer: a silence is known within their sum.
EVERY_SECONDS = 5.0
ANSWER_SECONDS = 5.0


class NodeWatch:
    """Asks the agents, and remembers their answers."""

    def __init__(
        self,
        agents: AnyAgent,
        clock: Clock,
        told: Callable[[Mapping[str, Finding]], None],
        drains: Drains,
    ) -> None:
        self._drains = drains
        self._notices_unknown = False
        self._agents = agents
        self._clock = clock
        self._tell_silent = told
        self._known: dict[str, NodeHealth] = {}

    def now(self) -> list[NodeHealth]:
        return [
            msgspec.structs.replace(self._known[node], drain=self._drains.of(node))
            for node in sorted(self._known)
        ]

    async def run(self) -> None:
        while True:
            try:
                await self.ask()
            except Exception:  # noqa: BLE001 the watch goes on, whatever it was
                _log.exception("the watch of the nodes failed; it goes on")
            await self._clock.sleep(EVERY_SECONDS)

    async def ask(self) -> None:
        nodes = self._agents.nodes()
        found = await asyncio.gather(*map(self._ask_agent, nodes))
        self._known = {each.node: each for each in found}
        self._tell_silent({each.node: each.silence for each in found if each.silence})
        await self._follow_notices()

    async def _ask_agent(self, node: str) -> NodeHealth:
        asked = self._clock.now()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                status = await self._agents.status(node)
        except TimeoutError:
            reason = Reason.NODE_SILENT if node else Reason.AGENT_UNREACHABLE
            why = f"no answer within {ANSWER_SECONDS:g} s"
            return self._silent(asked, node, Unreachable(reason, node=node, detail=why))
        except ReclaimError as error:
            return self._silent(asked, node, error)
        if self._is_silent(node):
            _log.info("the agent of %s answers again", node or "this machine")
        return NodeHealth(node=node, status=status)

    def _is_silent(self, node: str) -> bool:
        return node in self._known and self._known[node].silent_since is not None

    def _silent(self, asked: float, node: str, error: ReclaimError) -> NodeHealth:
        if not self._is_silent(node):
            where = node or "this machine"
            _log.warning("the agent of %s does not answer: %s", where, error)
        before = self._known.get(node, NodeHealth(node=node))
        since = before.silent_since
        return msgspec.structs.replace(
            before,
            status=before.status.unheard if before.status is not None else None,
            silent_since=asked if since is None else since,
            silence=finding(error.reason, **error.facts),
            silence_detail=error.detail,
        )

    async def _follow_notices(self) -> None:
        """Drain the nodes that are about to go, as the cluster says."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                notices = await self._agents.node_notices()
            self._drains.follow(notices)
        except (TimeoutError, ReclaimError) as error:
            if not self._notices_unknown:
                _log.warning("notices of nodes: not heeded now: %s", error)
            self._notices_unknown = True
        else:
            self._notices_unknown = False


@contextlib.asynccontextmanager
async def watching(watch: NodeWatch) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

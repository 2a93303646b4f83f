"""Watches the nodes: how each is, and since when its agent is silent.

Every agent is asked every few seconds, none waits for another, and one that does not
answer in that time is silent. It is for people: the page of nodes, the strip on the
managers' pages, and the steps of what is under way on a silent node. Nothing is decided
by it (law 5), but which node is drained.
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
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.drain import Drain, NodeNotice
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.service.clients.agent_router import (
        AgentRouter,
        AnyAgent,
    )

    #: Settles something with the nodes, as they were heard of now; never raises
    #: ``ReclaimError``.
    Settle = Callable[[Sequence[NodeHealth]], Awaitable[None]]

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
        drain_of: Callable[[str], Drain | None] = lambda _: None,
    ) -> None:
        self._drain_of = drain_of
        self.settles: list[Settle] = []  #: in turn, after each round
        self._agents = agents
        self._clock = clock
        self._tell_silent = told
        self._known: dict[str, NodeHealth] = {}

    def now(self) -> list[NodeHealth]:
        return [
            msgspec.structs.replace(self._known[node], drain=self._drain_of(node))
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
        for settle in self.settles:
            await settle(found)

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
        return NodeHealth(node=node, status=status)

    def _silent(self, asked: float, node: str, error: ReclaimError) -> NodeHealth:
        before = self._known.get(node, NodeHealth(node=node))
        since = before.silent_since
        return msgspec.structs.replace(
            before,
            status=before.status.unheard if before.status is not None else None,
            silent_since=asked if since is None else since,
            silence=finding(error.reason, **error.facts),
            silence_detail=error.detail,
        )


@contextlib.asynccontextmanager
async def watching(watch: NodeWatch) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class DrainWatch:
    """Asks the cluster which nodes are about to go, after each round of questions."""

    def __init__(
        self, agents: AgentRouter, follow: Callable[[Sequence[NodeNotice]], None]
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


class LostNodes:
    """Gives a node up that is silent to us and to the cluster for long enough.

    Kubernetes keeps the pods of a node that does not answer, since they may run: a
    session can come back elsewhere only when the node is said to be gone. A
    cloud's controller does, or an administrator (``kubectl taint … out-of-service``);
    where an administrator has set a time, we do, by force. Two must agree for all of
    that time: our agent there does not answer, and the API server says that the node is
    not ready. It is counted on this program's own clock, and from 0 after its restart.
    """

    def __init__(self, cluster: AgentRouter, clock: Clock, after: float) -> None:
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

"""The agents of a cluster by node: the pods of a DaemonSet, and a client for each.

A restarted agent has another address, which the next call uses; a reader whose stream
broke with the old one begins it again.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
    from jupyterhub_gpu_reclaim.service.clients.informer import Informer

T = TypeVar("T")


class Agents:
    def __init__(self, pods: Informer, connect: Callable[[str], AgentClient]) -> None:
        self._pods = pods
        self._connect = connect
        self._clients: dict[str, AgentClient] = {}
        self._answered = ""  # the node whose agent answered for all last

    async def run(self) -> None:
        await self._pods.run()

    def close(self) -> None:
        """Close connections; operations continue at the agents."""
        for client in self._clients.values():
            client.close()

    def on(self, node: str) -> AgentClient:
        """The agent of that node.

        Raises:
            Unreachable: there is none now.
        """
        ip = self._addresses().get(node)
        if ip is None:
            raise silent(node)
        return self._client_at(ip)

    def nodes(self) -> set[str]:
        """The nodes where an agent is, or is meant to be.

        Raises:
            ReclaimError: the nodes are not known.
        """
        return {pod.node for pod in self._pods.now() if pod.node}

    async def anyone(
        self,
        ask: Callable[[AgentClient], Awaitable[T]],
        first: Sequence[str] = (),
        *,
        seconds: float = math.inf,
    ) -> T:
        """Get a first answer; the agent that gave the last one is asked first.

        Those of the nodes ``first`` are asked even before. After so many seconds no
        further one is asked: what an order was decided by may not be true any more.

        Raises:
            Unreachable: there is no agent, or none answers.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        addresses = self._addresses()
        last = Unreachable(Reason.NO_AGENT)
        turn = lambda node: (node not in first, node != self._answered, node)  # noqa: E731
        for node in sorted(addresses, key=turn):
            try:
                answer = await ask(self._client_at(addresses[node]))
            except Unreachable as error:
                last = error
                if loop.time() > until:
                    break
                continue
            self._answered = node
            return answer
        raise last

    def _client_at(self, ip: str) -> AgentClient:
        if ip not in self._clients:
            for old in self._clients.keys() - set(self._addresses().values()):
                self._clients.pop(old).close()
            self._clients[ip] = self._connect(ip)
        return self._clients[ip]

    def _addresses(self) -> dict[str, str]:
        """IP address of each node's agent; of two agents, that of the ready one."""
        pods = [
            pod
            for pod in self._pods.now()
            if pod.node and pod.status.pod_ip and pod.status.phase == "Running"
        ]
        pods.sort(key=lambda p: (p.ready, p.metadata.deletion_timestamp is None))
        return {pod.node: pod.status.pod_ip or "" for pod in pods}


def silent(
    node: str, error: Exception | None = None, *, ending: bool = False
) -> Unreachable:
    """The error that says which node does not answer."""
    if ending:
        return Unreachable(Reason.ENDING_UNSEEN, node=node, detail=str(error or ""))
    if isinstance(error, Unreachable) and error.reason is Reason.AGENT_UNTRUSTED:
        return Unreachable(Reason.NODE_UNTRUSTED, node=node, **error.facts)
    return Unreachable(Reason.NODE_SILENT, node=node, detail=str(error or ""))


@contextmanager
def named(node: str) -> Iterator[None]:
    try:
        yield
    except Unreachable as error:
        raise silent(node, error) from None

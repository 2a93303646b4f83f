"""A Kubernetes cluster: its pods as the API server tells of them.

Above it the product's own router, registry and list of agents run
(``service/clients``). A pod is there from the spawner's start until it is deleted; when
its init has ended it is "over". Of a node that is gone the API server goes on telling
what it knew last; a pod that is deleted there ends when its kubelet is back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.clients.agent_router import AgentRouter
from jupyterhub_gpu_reclaim.service.clients.agents import Agents
from jupyterhub_gpu_reclaim.service.clients.pods import (
    ACCOUNT,
    CONTAINER,
    INCARNATION,
    SERVER,
    SESSION,
    USER,
    Condition,
    ContainerStatus,
    Meta,
    Pod,
    PodStatus,
    Spec,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from simulation.doubles.machine import Machines, Place

_READY = [Condition("Ready", "True")]


class ClusterInMemory:
    """The API server.

    Args:
        machines: the nodes.
        has_agent: whether a node's agent is listed as ready.
    """

    def __init__(self, machines: Machines, has_agent: Callable[[str], bool]) -> None:
        self._machines = machines
        self._has_agent = has_agent
        self._pods: dict[str, tuple[Place, str]] = {}
        self._ending: set[str] = set()
        self.away = False

    def add(self, place: Place, node: str) -> None:
        self._pods[place.pod] = (place, node)

    def sessions(self) -> list[Pod]:
        return [self._pod(place, node) for place, node in self._pods.values()]

    def daemons(self) -> list[Pod]:
        """The agents' pods; one that is being started again is not ready."""
        return [
            Pod(
                Meta(name=f"agent-{machine.name}"),
                Spec(node_name=machine.name),
                PodStatus(
                    phase="Running",
                    pod_ip=machine.name,
                    conditions=_READY if self._has_agent(machine.name) else [],
                ),
            )
            for machine in self._machines
        ]

    def _pod(self, place: Place, node: str) -> Pod:
        machine = self._machines.by_name[node]
        over = machine.up and place.incarnation not in machine.places
        state: dict[str, Any] = {"terminated": {}} if over else {"running": {}}
        return Pod(
            Meta(
                name=f"jupyter-{place.key.user}",
                uid=place.pod,
                deletion_timestamp="now" if place.pod in self._ending else None,
                labels={INCARNATION: place.incarnation},
                annotations={
                    USER: place.key.user,
                    SERVER: place.key.server,
                    SESSION: place.session,
                    ACCOUNT: place.account,
                },
            ),
            Spec(node_name=node),
            PodStatus(
                phase="Running",
                container_statuses=[ContainerStatus(CONTAINER, "image", state=state)],
            ),
        )

    async def delete(self, pod: Pod) -> None:
        """Delete a pod: its kubelet ends what is in it."""
        await asyncio.sleep(0.01)
        self.remove(pod.uid)

    def remove(self, uid: str) -> None:
        """End and forget a pod; on a node that is gone, once that is back."""
        found = self._pods.get(uid)
        if found is None:
            return
        place, node = found
        machine = self._machines.by_name[node]
        if not machine.up:
            self._ending.add(uid)
            return
        if machine.places.get(place.incarnation) is place:
            machine.end(place, "the kubelet")
        self._pods.pop(uid, None)

    def node_is_back(self, node: str) -> None:
        """Its kubelet ends the pods that were deleted meanwhile."""
        for uid, (_, there) in list(self._pods.items()):
            if there == node and uid in self._ending:
                self.remove(uid)

    async def node(self, name: str) -> Any:
        """No session here asks for labels of its node."""
        raise Unreachable(Reason.CLUSTER_UNREACHABLE, detail=name)


class InformerInMemory:
    """What a watch of the API server knows."""

    def __init__(self, cluster: ClusterInMemory, look: Callable[[], list[Pod]]) -> None:
        self._cluster = cluster
        self._look = look

    async def run(self) -> None:
        await asyncio.Event().wait()

    def now(self) -> list[Pod]:
        return self._look()

    def of(self, key: SessionKey) -> list[Pod]:
        return [pod for pod in self._look() if pod.key == key]

    def last_seen(self) -> list[Pod]:
        """Those that are there: what is gone is not remembered here."""
        return self._look()

    async def fresh(self, selector: str = "") -> list[Pod]:
        await asyncio.sleep(0.01)
        if self._cluster.away:
            raise Unreachable(Reason.CLUSTER_UNREACHABLE, detail="away")
        _, _, incarnation = selector.partition("=")
        return [pod for pod in self._look() if incarnation in ("", pod.incarnation)]


def router(cluster: ClusterInMemory, connect: Callable[[str], Any]) -> AgentRouter:
    sessions: Any = InformerInMemory(cluster, cluster.sessions)
    daemons: Any = InformerInMemory(cluster, cluster.daemons)
    whole: Any = cluster
    return AgentRouter(whole, sessions=sessions, agents=Agents(daemons, connect))

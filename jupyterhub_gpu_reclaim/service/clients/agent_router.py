"""Agent router: the agents of a cluster as one ``Agent``.

Each order goes to the session's own node. Only the API server says which session runs
in which pod on which node; what an agent reports of other pods, or of other sessions in
them, is left out. If a node does not answer, its own sessions are unknown, and no
others. A pod is deleted here only after its tree is dead, never by force, and never
another one of the same name.

All agents of a cluster have the same store, so any of them answers for it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from jupyterhub_gpu_reclaim.common.agent_orders import (
    AgentOrder,
    Discard,
    Kill,
    PodHint,
    Release,
    Saving,
)
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.models import SessionKey, Tree, TreeState, Waiting
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.clients import node_notices
from jupyterhub_gpu_reclaim.service.clients.agents import named, silent
from jupyterhub_gpu_reclaim.service.clients.pods import INCARNATION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from jupyterhub_gpu_reclaim.common.drain import NodeNotice
    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        Event,
        Failure,
        Identity,
        Sample,
    )
    from jupyterhub_gpu_reclaim.common.node_status import NodeStatus
    from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
    from jupyterhub_gpu_reclaim.service.clients.agents import Agents
    from jupyterhub_gpu_reclaim.service.clients.informer import Informer
    from jupyterhub_gpu_reclaim.service.clients.kubernetes import Api
    from jupyterhub_gpu_reclaim.service.clients.pods import Pod

    #: What the service asks: the machine's one agent, or those of a cluster.
    AnyAgent: TypeAlias = "AgentClient | AgentRouter"

_log = logging.getLogger(__name__)


#: Seconds after which a node counts as silent; the others do not wait for it.
LOOK_SECONDS = 5.0
#: Seconds after which an order that was not taken is not given to another agent: what
#: it was decided by, that a session runs for one, may not be so any more.
_ORDER_SECONDS = 5.0


class AgentRouter:
    def __init__(
        self,
        cluster: Api,
        *,
        sessions: Informer,
        agents: Agents,
        node_labels: Sequence[str] = (),
        heeds: Sequence[str] = (),
    ) -> None:
        self._cluster = cluster
        self._sessions = sessions
        self._agents = agents
        self._node_labels = frozenset(node_labels)
        self._heeds = frozenset(heeds)
        #: The errors with which nodes did not answer last.
        self._silences: dict[str, Exception] = {}
        #: Nodes that were about to go, though their agents and sessions be gone.
        self._noticed: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(followed.run())
            for followed in (self._sessions, self._agents)
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._agents.close()
        await self._cluster.close()

    # --- looking
    def nodes(self) -> list[str]:
        """The nodes with an agent, and those where a session holds a GPU, by name.

        A node without GPUs need not have an agent, and is not silent then.
        """
        found: set[str] = set()
        with suppress(ReclaimError):
            pods = self._sessions.now()
            found |= {pod.node for pod in pods if pod.node and pod.wants_gpu}
        with suppress(ReclaimError):
            found |= self._agents.nodes()
        return sorted(found)

    async def status(self, node: str) -> NodeStatus:
        with named(node):
            return await self._agents.on(node).status()

    async def node_notices(self) -> list[NodeNotice]:
        """List the cluster's notices of nodes that are about to go.

        Raises:
            ReclaimError: it does not answer for one of them, or which there are is not
                known: then nothing has been taken back.
        """
        if not self._heeds:
            return []
        used = {pod.node for pod in self._sessions.now() if pod.node}
        names = sorted(used | self._agents.nodes() | self._noticed)
        found = await asyncio.gather(*map(self._notice_of, names))
        notices = [notice for notice in found if notice is not None]
        self._noticed = {notice.node for notice in notices}
        return notices

    async def _notice_of(self, name: str) -> NodeNotice | None:
        try:
            node = await self._cluster.node(name)
        except NotFound:
            return None
        return node_notices.notice_of(node, self._heeds)

    async def trees(self, key: SessionKey | None = None) -> list[Tree]:
        pods = self._sessions.now() if key is None else await self._pods_of(key)
        by_node: dict[str, list[Pod]] = {}
        for pod in pods:
            if pod.node and not pod.over:
                by_node.setdefault(pod.node, []).append(pod)
        asked = [self._trees_on(node, mine) for node, mine in by_node.items()]
        found = [tree for trees in await asyncio.gather(*asked) for tree in trees]
        unseen = [tree for tree in found if tree.state is TreeState.UNKNOWN]
        if key is not None and unseen:
            node, ending = unseen[0].node, all(tree.ending for tree in found)
            raise silent(node, self._silences.get(node), ending=ending)
        return found

    async def _trees_on(self, node: str, pods: list[Pod]) -> list[Tree]:
        ours = {(pod.incarnation, pod.uid): pod for pod in pods}
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                trees = await self._agents.on(node).trees()
        except (ReclaimError, TimeoutError) as error:
            self._silences[node] = error
            return [
                Tree(
                    incarnation=pod.incarnation,
                    key=pod.key,
                    session=pod.session,
                    account=pod.account,
                    state=TreeState.UNKNOWN,
                    init_pid=0,
                    pod=pod.uid,
                    ending=pod.ending,
                    node=node,
                )
                for pod in pods
            ]
        return [
            msgspec.structs.replace(
                tree,
                key=pod.key,
                session=pod.session,
                account=pod.account,
                ending=tree.ending or pod.ending,
                node=node,
            )
            for tree in trees
            if (pod := ours.get((tree.incarnation, tree.pod))) is not None
        ]

    async def tree(self, incarnation: str) -> Tree:
        pod, client = await self._seat(incarnation)
        with named(pod.node):
            tree = await client.tree(incarnation, pod=pod.uid)
        return msgspec.structs.replace(tree, key=pod.key, node=pod.node)

    async def samples(self, key: SessionKey | None = None) -> list[Sample]:
        """Sample every session, except those on a silent node.

        With a ``key``, sample those on that session's nodes.
        """
        pods = {(p.incarnation, p.uid): p for p in self._sessions.now() if p.node}
        nodes = sorted(
            {
                pod.node
                for pod in pods.values()
                if not pod.over and key in {None, pod.key}
            }
        )
        answers = await asyncio.gather(
            *(self._samples_on(node) for node in nodes), return_exceptions=True
        )
        found: list[Sample] = []
        for answer in answers:
            if isinstance(answer, list):
                found += answer
            elif not isinstance(answer, (ReclaimError, TimeoutError)):
                raise answer
        if nodes and not any(isinstance(answer, list) for answer in answers):
            raise silent(", ".join(nodes))
        return [
            msgspec.structs.replace(sample, key=pod.key)
            for sample in found
            if (pod := pods.get((sample.incarnation, sample.pod))) is not None
        ]

    async def _samples_on(self, node: str) -> list[Sample]:
        async with asyncio.timeout(LOOK_SECONDS):
            return await self._agents.on(node).samples()

    # --- doing
    async def follow(self, incarnation: str, order: AgentOrder) -> AsyncIterator[Event]:
        """Give an order that streams to the agent of the session's node."""
        pod, client = await self._seat(incarnation, running=order.needs_image)
        told = await self._with_facts(order, pod)
        with named(pod.node):
            async for event in client.follow(incarnation, told):
                yield event

    async def order(self, subject: str, order: AgentOrder) -> None:
        """Give any other order: about a session to its node's agent.

        A checkpoint is in the store of all of them; whether the session that came from
        it runs, its own node's agent sees.
        """
        if isinstance(order, Kill):
            await self._kill(subject, order)
        elif order.about == "sessions":
            pod, client = await self._seat(subject)
            told = await self._with_facts(order, pod)
            with named(pod.node):
                await client.order(subject, told)
            if isinstance(order, Release):
                await self._delete(pod)
        elif isinstance(order, Discard) and order.runs:
            _, client = await self._seat(order.runs)
            await client.order(subject, order)
        else:
            await self._agents.anyone(
                lambda client: client.order(subject, order), seconds=_ORDER_SECONDS
            )

    async def _with_facts(self, order: AgentOrder, pod: Pod) -> AgentOrder:
        hint = PodHint(
            pod=pod.uid,
            key=pod.key,
            image=pod.image,
            # Its checkpoint tells what its node was.
            node_labels=await self._labels_of(pod) if isinstance(order, Saving) else {},
            session=pod.session,
            account=pod.account,
        )
        return msgspec.structs.replace(order, hint=hint)

    async def _kill(self, incarnation: str, order: Kill) -> None:
        pod = await self._pod_of(incarnation)
        if pod.node and not pod.over:
            # no init there (yet): the kubelet ends what there is
            with suppress(NotFound), named(pod.node):
                told = await self._with_facts(order, pod)
                await self._agents.on(pod.node).order(incarnation, told)
        await self._delete(pod)

    def labels(self, key: SessionKey) -> dict[str, str] | None:
        try:
            pods = [pod for pod in self._sessions.of(key) if not pod.over]
        except ReclaimError:
            return None
        return (pods[0].metadata.labels or {}) if len(pods) == 1 else None

    def ending(self, incarnation: str) -> Failure | None:
        """The end of an incarnation's pod, by whomever; None: not, or not known."""
        for pod in self._sessions.last_seen():
            if pod.incarnation == incarnation:
                return pod.end
        return None

    def waiting(self) -> list[Waiting]:
        """Sessions that no node has a GPU for, the longest first."""
        try:
            pods = [pod for pod in self._sessions.now() if pod.lacks_gpu]
        except ReclaimError:
            return []
        pods.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.uid))
        return [Waiting(key=pod.key, since=pod.created, gpus=pod.gpus) for pod in pods]

    # --- the store, which all of them have
    async def checkpoints(self, key: SessionKey | None = None) -> list[CheckpointInfo]:
        pods = self._sessions.now()
        nodes = [p.node for p in pods if p.key == key and p.node and not p.over]
        return await self._agents.anyone(lambda client: client.checkpoints(key), nodes)

    async def identity(self, checkpoint: str) -> Identity:
        return await self._agents.anyone(lambda client: client.identity(checkpoint))

    # --- who and where
    async def _pods_of(self, key: SessionKey) -> list[Pod]:
        mine = self._sessions.of(key)
        if mine and all(pod.node for pod in mine):
            return mine
        return [pod for pod in await self._sessions.fresh() if pod.key == key]

    async def _pod_of(self, incarnation: str, *, running: bool = False) -> Pod:
        """Find the pod of an incarnation; ``running``: its image has to be known, too.

        The watch is enough to know that a pod exists; that none does is only concluded
        from a fresh list, since it decides that a session is gone.

        Raises:
            NotFound: there is none.
        """
        for pod in self._sessions.now():
            known = pod.node and (pod.image or not running)
            if pod.incarnation == incarnation and known:
                return pod
        for pod in await self._sessions.fresh(f",{INCARNATION}={incarnation}"):
            if pod.incarnation == incarnation:
                return pod
        raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)

    async def _seat(
        self, incarnation: str, *, running: bool = False
    ) -> tuple[Pod, AgentClient]:
        """Find the pod of an incarnation, and its node's agent.

        Raises:
            NotFound: there is no such pod, or its container is dead.
            Unreachable: it is not known.
        """
        pod = await self._pod_of(incarnation, running=running)
        if not pod.node or pod.over:
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)
        return pod, self._agents.on(pod.node)

    async def _labels_of(self, pod: Pod) -> dict[str, str]:
        """The labels of its node that a session with a GPU needs again."""
        if not self._node_labels or not pod.wants_gpu:
            return {}
        try:
            labels = (await self._cluster.node(pod.node)).metadata.labels or {}
        except (NotFound, Unreachable) as error:
            if error.reason is Reason.CLUSTER_UNREACHABLE:
                raise
            # The agent of the next node compares the cards themselves.
            _log.warning("%s: labels of %s: %s", pod.key, pod.node, error)
            return {}
        return {name: labels[name] for name in self._node_labels & labels.keys()}

    async def _delete(self, pod: Pod) -> None:
        """Delete a pod whose tree is dead.

        If this fails, the spawner's stop or next start does it.
        """
        try:
            await self._cluster.delete(pod)
        except ReclaimError as error:
            _log.warning("%s: pod %s: %s", pod.key, pod.metadata.name, error)

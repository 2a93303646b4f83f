"""An agent and a Hub in memory that answer at once; their sessions stay as they are.

Used by ``restart.py`` and ``service_cost.py``, which measure what the service asks and
what that costs. Sessions run and work, or are suspended; nobody comes or goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    GpuSample,
    HubState,
    Identity,
    KernelSample,
    Phase,
    Sample,
    SessionKey,
    Tree,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.session import (
    CheckpointRow,
    Keeping,
    SessionRow,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.agent_orders import AgentOrder
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import Event, Failure, Waiting
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal

GB = 10**9


class StillAgent:
    """An ``Agent`` of ``controlplane.interfaces``; its sessions always work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now()
        self._trees: dict[SessionKey, Tree] = {}
        self._saved: dict[SessionKey, CheckpointInfo] = {}

    def running(self, key: SessionKey, journal: Journal) -> None:
        """A session runs, and the journal knows it."""
        name = f"i-{key.user}"
        state = TreeState.RUNNING
        self._trees[key] = Tree(incarnation=name, key=key, state=state, init_pid=1)
        now = self._began
        journal.save(
            SessionRow(key=key, phase=Phase.RUNNING, since=now, incarnation=name)
        )

    def suspended(self, key: SessionKey, journal: Journal) -> None:
        """A session is suspended, and the journal knows it."""
        info = CheckpointInfo(
            id=f"c-{key.user}",
            key=key,
            incarnation="i",
            generation=1,
            created=self._began,
            logical_bytes=10 * GB,
            stored_bytes=5 * GB,
            gpus=[GpuSample(uuid="GPU")],
        )
        self._saved[key] = info
        row = SessionRow(
            key=key,
            phase=Phase.SUSPENDED,
            since=self._began,
            checkpoint=info.id,
            generation=1,
        )
        kept = CheckpointRow(info=info, keeping=Keeping.CURRENT)
        journal.save(row, None, [kept])

    async def trees(self, key: SessionKey | None = None) -> list[Tree]:
        return _of(key, self._trees)

    async def tree(self, incarnation: str) -> Tree:
        for tree in self._trees.values():
            if tree.incarnation == incarnation:
                return tree
        raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)

    def labels(self, _key: SessionKey) -> dict[str, str]:
        return {}

    def ending(self, _incarnation: str) -> Failure | None:
        return None

    def waiting(self) -> list[Waiting]:
        return []

    async def samples(self, key: SessionKey | None = None) -> list[Sample]:
        now = self._clock.now()
        return [self._sample(tree, now) for tree in _of(key, self._trees)]

    def _sample(self, tree: Tree, now: float) -> Sample:
        kernel = KernelSample(
            id="k", name="train.ipynb", execution_state="busy", last_activity=now
        )
        card = GpuSample(uuid="0" * 32, name="H100", memory=10 * GB, sm_percent=80.0)
        return Sample(
            incarnation=tree.incarnation,
            key=tree.key,
            at=now,
            memory=2 * GB,
            cpu_work=now - self._began,
            kernels=[kernel],
            terminals=[],
            connections=0,
            started=self._began,
            gpus=[card],
        )

    def follow(self, _incarnation: str, order: AgentOrder) -> AsyncIterator[Event]:
        raise Refused(Reason.INTERNAL, detail=f"{order.kind}: nobody comes or goes")

    async def order(self, subject: str, order: AgentOrder) -> None:
        if order.kind != "mark":
            raise Refused(Reason.INTERNAL, detail=f"{order.kind}: nobody comes or goes")
        for key, info in self._saved.items():
            if info.id == subject:
                self._saved[key] = info.marked(order.said, (0, order.word))

    async def checkpoints(self, key: SessionKey | None = None) -> list[CheckpointInfo]:
        return _of(key, self._saved)

    async def identity(self, _checkpoint: str) -> Identity:
        return Identity(api_token="secret", port=8888)


class StillHub:
    """A ``Hub`` likewise: what the agent runs, runs here."""

    def __init__(self, agent: StillAgent) -> None:
        self._agent = agent

    async def servers(self) -> dict[SessionKey, HubState]:
        return {t.key: HubState.RUNNING for t in await self._agent.trees()}

    async def server(self, key: SessionKey) -> HubState:
        return (await self.servers()).get(key, HubState.STOPPED)

    async def start(self, key: SessionKey) -> None:
        raise Refused(Reason.INTERNAL, detail=f"{key} comes")

    async def stop(self, key: SessionKey) -> None:
        raise Refused(Reason.INTERNAL, detail=f"{key} goes")


def _of(key: SessionKey | None, each: dict[SessionKey, Any]) -> list[Any]:
    if key is None:
        return list(each.values())
    return [each[key]] if key in each else []

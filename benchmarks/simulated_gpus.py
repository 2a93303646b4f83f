"""GPUs that are given out one by one, and what a session does on one of them.

Used by ``simulated_node.py`` and by the baselines of ``simulation.py``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from jupyterhub_gpu_reclaim.common.models import (
    GpuSample,
    KernelSample,
    Sample,
    SessionKey,
)
from jupyterhub_gpu_reclaim.testing.memory_agent import MemorySession

GB = 10**9


class Gpus:
    """A number of GPUs, first come, first served, as the scheduler nearly does it."""

    def __init__(self, count: int) -> None:
        self.free = count
        self.queue: deque[tuple[SessionKey, float, asyncio.Future[None]]] = deque()

    async def take(self, key: SessionKey, now: float) -> None:
        if self.free and not self.queue:
            self.free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (key, now, turn)
        self.queue.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()
            else:
                self.queue.remove(entry)
            raise

    def give(self) -> None:
        while self.queue:
            turn = self.queue.popleft()[2]
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


@dataclass(eq=False)
class Place(MemorySession):
    """One incarnation."""

    vram: int
    started: float
    worked: float = 0.0  # seconds of work so far
    busy_since: float | None = None
    active: float = 0.0  # when it was last used or at work

    def work(self, busy: bool, now: float) -> None:
        if self.busy_since is not None:
            self.worked += now - self.busy_since
        self.busy_since = now if busy else None
        self.active = now

    def sample(self, now: float) -> Sample:
        busy = self.busy_since is not None and self.nap is None
        worked = self.worked + (now - self.busy_since if busy else 0.0)
        kernel = KernelSample(
            id="k",
            name="train.ipynb",
            execution_state="busy" if busy else "idle",
            last_activity=now if busy else self.active,
        )
        gpu = GpuSample(
            uuid=self.incarnation,
            name="H200",
            memory=self.vram,
            sm_percent=80.0 if busy else 0.0,
        )
        return Sample(
            incarnation=self.incarnation,
            key=self.key,
            at=now,
            memory=2 * GB,
            cpu_work=worked,
            kernels=[kernel],
            terminals=[],
            connections=0,
            started=self.started,
            gpus=[] if self.nap is not None else [gpu],
        )

"""The work queue: one worker per key, patience, and nothing that ends it."""

import asyncio
import itertools

import pytest

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.workqueue import WorkQueue

A, B = SessionKey("a"), SessionKey("b")


async def _turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Bench:
    """Work that a test lets go on, and what it saw."""

    def __init__(self) -> None:
        self.looks: list[SessionKey] = []
        self.times: list[float] = []
        self.at_once = self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.answers: list[object] = []

    async def work(self, key: SessionKey) -> float | None:
        self.looks.append(key)
        self.times.append(asyncio.get_running_loop().time())
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await self.gate.wait()
        finally:
            self.at_once -= 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
async def bench():
    return Bench()


async def test_queue_key_added_while_worked_on_is_looked_at_once_more(bench):
    queue = WorkQueue(bench.work)
    bench.gate.clear()
    queue.add(A)
    await _turns()
    for _ in range(5):
        queue.add(A)
    assert queue.busy(A)
    bench.gate.set()
    await _turns()
    assert bench.looks == [A, A]
    assert bench.most == 1
    assert not queue.busy(A)


async def test_queue_bounds_the_workers_of_all_keys(bench):
    queue = WorkQueue(bench.work, 2)
    bench.gate.clear()
    keys = [SessionKey(str(number)) for number in range(6)]
    for key in keys:
        queue.add(key)
    await _turns()
    assert bench.most == 2
    bench.gate.set()
    await _turns(60)
    assert sorted(bench.looks) == keys


async def test_queue_looks_again_after_the_wanted_time(bench):
    queue = WorkQueue(bench.work)
    bench.answers = [5.0]
    queue.add(A)
    await _turns()
    await asyncio.sleep(4.9)
    await _turns()
    assert bench.looks == [A]
    await asyncio.sleep(0.2)
    await _turns()
    assert bench.looks == [A, A]


async def test_queue_earlier_add_replaces_the_timer(bench):
    queue = WorkQueue(bench.work)
    bench.answers = [100.0]
    queue.add(A)
    await _turns()
    queue.add(A)
    await _turns()
    await asyncio.sleep(200.0)
    await _turns()
    assert bench.looks == [A, A]


async def test_queue_failures_wait_longer_each_time_and_are_per_key(bench):
    queue = WorkQueue(bench.work)
    lost = Unreachable(Reason.AGENT_UNREACHABLE)
    bench.answers = [lost, ValueError("a fault of ours"), *[lost] * 6]
    queue.add(A)
    await asyncio.sleep(300)
    waits = [after - before for before, after in itertools.pairwise(bench.times)]
    assert waits == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60])
    queue.add(B)
    await _turns()
    assert bench.looks[-1] == B


async def test_queue_stopped_ends_its_work_and_takes_no_more(bench):
    queue = WorkQueue(bench.work)
    bench.gate.clear()
    queue.add(A)
    await _turns()
    await queue.stop()
    queue.add(B)
    queue.add(A)
    await _turns()
    assert bench.looks == [A]
    assert bench.at_once == 0

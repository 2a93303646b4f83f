"""The cards are looked at once for all sessions, and a silent driver delays nobody."""

import os
import threading

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.sampling.gpu import CardUse, ProcessUse
from jupyterhub_gpu_reclaim.sampling.process_tree import SampleTarget
from jupyterhub_gpu_reclaim.sampling.sampler import CARD_SECONDS, Sampler


class Cards:
    def __init__(self) -> None:
        self.asked: list[float] = []

    def measure(self, since: float) -> list[CardUse]:
        self.asked.append(since)
        mine = ProcessUse(pid=os.getpid(), memory=7, sm_percent=40.0)
        return [CardUse(uuid="ab", name="H200", processes=[mine])]


class Hanging:
    """A driver that does not answer until it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def measure(self, since: float) -> list[CardUse]:
        self.go_on.wait(10)
        return []


def watched(name: str, *pids: int) -> SampleTarget:
    me = os.getpid()
    return SampleTarget(name, SessionKey(name), me, me, list(pids), None)


async def take(cards, *sessions: SampleTarget, seconds: float = 60.0):
    sampler = Sampler(SystemClock(), cards, answer_seconds=seconds)
    try:
        return await sampler.sample_all(list(sessions))
    finally:
        sampler.client.close()


async def test_each_session_gets_its_own_part_of_one_look():
    cards = Cards()
    mine, other = await take(cards, watched("ann", os.getpid()), watched("bob", 1))
    assert [(gpu.uuid, gpu.sm_percent, gpu.memory) for gpu in mine.gpus] == [
        ("ab", 40.0, 7)
    ]
    assert other.gpus == []
    assert len(cards.asked) == 1


async def test_a_second_look_right_after_reaches_back_far_enough():
    cards = Cards()
    sampler = Sampler(SystemClock(), cards, answer_seconds=60.0)
    now = SystemClock().now()
    for _ in range(2):
        await sampler.sample_all([watched("ann", os.getpid())])
    sampler.client.close()
    assert all(now - since >= CARD_SECONDS - 1 for since in cards.asked)


async def test_a_driver_that_hangs_leaves_the_gpu_unknown_and_the_rest_known():
    cards = Hanging()
    # The rest has the same limit, also on a machine that has other work.
    (one,) = await take(cards, watched("ann", os.getpid()), seconds=2)
    cards.go_on.set()
    assert one.gpus is None
    assert "its GPU: no answer" in one.problem
    assert one.memory

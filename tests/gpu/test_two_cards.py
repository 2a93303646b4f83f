"""Two cards: a session of both, and one that comes back on the other."""

import signal
import time

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu import cuda
from jupyterhub_gpu_reclaim.checkpoint.gpu import survey as gpu_processes
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml

BOTH = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
x = [torch.randn(1 << 26, device=f"cuda:{n}") for n in range(2)]
"""
FIRST = """
import torch
torch.set_num_threads(1)
x = torch.arange(1 << 26, device="cuda:0", dtype=torch.float32)
"""


@pytest.fixture
def cards(driver):
    found = [card.uuid for card in driver.cards()]
    if len(found) < 2:
        pytest.skip("needs two cards")
    return found


def test_a_session_of_both_cards_comes_back_three_times(session, cards):
    one = session()
    one(BOTH + "None")
    check = "[float(part.sum()) for part in x] + [float((x[0].to('cuda:1') @ x[1]))]"
    before = one(check)
    for _ in range(3):
        one.cycle()
        assert one(check) == before


def test_a_session_comes_back_on_the_other_card(session, driver, cards):
    one = session()
    one(FIRST + "None")
    before = one("float(x.sum())")
    survey = gpu_processes.survey(driver, one.place.tree)
    users = [user.process for user in survey.users]
    assert _cards_of(users[0].pid) == {cards[0]}
    cuda.empty(driver, users, lock_seconds=5, seconds=60)
    first, second, *rest = cards
    moves = [(first, second), (second, first), *((card, card) for card in rest)]
    cuda.fill(driver, users, seconds=60, moves=moves)
    for process in users:
        processes.send(process, signal.SIGCONT)  # emptied, it was stopped
    assert one("float(x.sum())") == before
    assert _cards_of(users[0].pid) == {second}
    # And from there through the agent, like any other.
    one.cycle()
    assert one("float(x.sum())") == before


def _cards_of(pid: int) -> set[str]:
    nvml = Nvml()
    found = nvml.measure(time.time() - 1)
    nvml.close()
    large = 2**27
    return {
        c.uuid for c in found for p in c.processes if p.pid == pid and p.memory > large
    }

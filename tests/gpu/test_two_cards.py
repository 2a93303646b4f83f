"""Two cards: a session of both, and one that comes back on the other."""

import signal
import time

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu import cuda
from jupyterhub_gpu_reclaim.checkpoint.gpu import survey as gpu_processes
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml

#: Two programs, a card each; ``sums()`` are of both.
BOTH = """
import subprocess, sys
code = '''
import os, sys
os.environ["CUDA_VISIBLE_DEVICES"] = sys.argv[1]
import torch
torch.manual_seed(0)
x = torch.randn(1 << 28, device="cuda")
for line in sys.stdin:
    print(float(x.sum()), flush=True)
'''
both = [
    subprocess.Popen(
        [sys.executable, "-c", code, str(card)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    for card in range(2)
]
def sums():
    for one in both:
        print(file=one.stdin, flush=True)
    return [float(one.stdout.readline()) for one in both]
"""
#: What one process may have on two cards, by the size of its largest allocation. The
#: driver does not fill again what is larger and the other card may read.
PEERS = {
    "torch": """
import torch
x = torch.arange({size} // 4, device="cuda:0", dtype=torch.float32)
y = x.to("cuda:1")
check = lambda: [float(x[::1001].sum()), float(y[::1001].sum())]
""",
    "jax": """
import jax, jax.numpy as jnp
x = jnp.arange({size} // 4, dtype=jnp.float32)
check = lambda: float(x[::1001].sum())
""",
}
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
    one = session("0,1")
    one(BOTH + "None")
    before = one("sums()")
    for _ in range(3):
        one.cycle()
        assert one("sums()") == before


@pytest.mark.parametrize("name", PEERS)
def test_memory_that_another_card_may_read_is_refused_and_computes_on(
    session, cards, name
):
    pytest.importorskip(name)
    one = session("0,1")
    one(PEERS[name].format(size=1 << 30) + "None")
    before = one("check()")
    assert one.capture()["failure"]["code"] == "gpu_peers"
    assert one("check()") == before


def test_a_session_comes_back_on_the_other_card(session, driver, cards):
    one = session("0,1")
    one(FIRST + "None")
    before = one("float(x.sum())")
    moved = _swap_cards(one, driver, cards)
    assert one("float(x.sum())") == before
    assert _cards_of(moved) == {cards[1]}
    # And from there through the agent, like any other.
    one.cycle()
    assert one("float(x.sum())") == before


def _swap_cards(one, driver, cards) -> int:
    """Move what is on the first card to the second, and back; the program's pid."""
    survey = gpu_processes.survey(driver, one.place.tree)
    users = survey.users
    assert _cards_of(users[0].pid) == {cards[0]}
    cuda.empty(driver, users, lock_seconds=5, seconds=60)
    first, second, *rest = cards
    moves = [(first, second), (second, first), *((card, card) for card in rest)]
    cuda.fill(driver, users, seconds=60, moves=moves)
    for process in users:
        processes.send(process, signal.SIGCONT)  # emptied, it was stopped
    return users[0].pid


#: What NCCL looks a card up by: the driver may tell the former card's (NVIDIA's issue
#: cuda-checkpoint#48), and NVML is asked about that one then.
BUS_ID = """
import ctypes
name = ctypes.create_string_buffer(32)
ctypes.CDLL("libcuda.so.1").cuDeviceGetPCIBusId(name, 32, 0)
bus_id = name.value.decode()
"""
NCCL = """
import torch.distributed as dist
dist.init_process_group(
    "nccl", init_method="tcp://127.0.0.1:29512", rank=0, world_size=1
)
y = torch.ones(4, device="cuda:0")
dist.all_reduce(y)
torch.cuda.synchronize()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("used", [False, True])
def test_nccl_starts_after_a_move_to_the_other_card(session, driver, cards, used):
    """Whether it had been used before the move, on the former card, or not."""
    one = session("0,1")
    one(FIRST + (NCCL if used else "") + BUS_ID + "None")
    _swap_cards(one, driver, cards)
    was, now = one("bus_id"), one(BUS_ID + "bus_id")
    try:
        one(NCCL + "None")
    except AssertionError as error:
        pytest.fail(f"bus id {was} before, {now} after the move: {error}")
    assert one("float(y.sum())") == 4.0
    one.cycle()
    assert one(NCCL + "float(y.sum())") == 4.0


def _cards_of(pid: int) -> set[str]:
    nvml = Nvml()
    found = nvml.measure(time.time() - 1)
    nvml.close()
    large = 2**27
    return {
        c.uuid for c in found for p in c.processes if p.pid == pid and p.memory > large
    }


#: Two ranks, a card each; a line is how many steps they take, the answer their losses.
RANKS = """
import subprocess, sys
code = '''
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=store, rank=rank, world_size=2)
torch.manual_seed(rank)
model = torch.nn.Linear(1024, 1024).cuda()
model = DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for line in sys.stdin:
    losses = []
    for _ in range(int(line)):
        x = torch.randn(64, 1024, device="cuda")
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(losses, flush=True)
'''
ranks = [
    subprocess.Popen(
        [sys.executable, "-c", code, str(rank), "tcp://127.0.0.1:29511"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    for rank in range(2)
]
def steps(count):
    for one in ranks:
        print(count, file=one.stdin, flush=True)
    return [eval(one.stdout.readline()) for one in ranks]
def end():
    for one in ranks:
        one.stdin.close()
    return [one.wait() for one in ranks]
"""
#: Without these NCCL shares GPU memory between its ranks (CUDA IPC).
BY_SOCKET = """
import os
os.environ |= {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
"""


def uninterrupted(session) -> list[list[float]]:
    one = session("0,1")
    one(BY_SOCKET + RANKS + "None")
    losses = one("steps(6)")
    one("end()")
    return losses


def test_ranks_of_a_session_train_on_with_equal_losses(session, cards):
    """They talk by sockets over the machine's own address, and share NCCL's port."""
    expected = uninterrupted(session)
    one = session("0,1")
    one(BY_SOCKET + RANKS + "None")
    losses = one("steps(2)")
    for _ in range(2):
        one.cycle()
        more = one("steps(2)")
        losses = [seen + new for seen, new in zip(losses, more, strict=True)]
    assert losses == expected
    assert one("end()") == [0, 0]


def test_ranks_that_share_gpu_memory_are_refused_and_train_on(session, cards):
    expected = uninterrupted(session)
    one = session("0,1")
    one(RANKS + "None")
    losses = one("steps(3)")
    answer = one.capture()
    if (answer.get("failure") or {}).get("code") != "gpu_ipc":
        pytest.skip("NCCL shares no GPU memory between the ranks of this machine")
    more = one("steps(3)")
    seen = [first + rest for first, rest in zip(losses, more, strict=True)]
    assert seen[0] == pytest.approx(expected[0])  # another way to add them up
    assert one("end()") == [0, 0]

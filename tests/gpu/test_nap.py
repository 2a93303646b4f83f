"""Naps on a real card: what computes there goes on from where it stood."""

import importlib.util
import os
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import held_by
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
from tests.gpu.conftest import PATIENCE
from tests.gpu.test_frameworks import PROGRAMS, TORCH
from tests.support.agent import wait_for

NVML_ONLY = """
import subprocess, sys
code = '''
import pynvml, time
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
while True:
    used = pynvml.nvmlDeviceGetMemoryInfo(card).used
    print(used, flush=True)
    time.sleep(0.1)
'''
watcher = subprocess.Popen(
    [sys.executable, "-c", code], text=True, stdout=subprocess.PIPE
)
used = int(watcher.stdout.readline())
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_the_same_after_each_of_three_naps(session, driver, name):
    module, setup, check = PROGRAMS[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    one = session()
    one(setup + "None")
    before = one(check)
    for _ in range(3):
        assert one.order("nap")["state"] == "napping"
        # Compilers keep a card's device open that they hold no memory of.
        assert not any(driver.memory(one.pids).values())
        assert one.order("wake")["state"] == "running"
        assert one(check) == before
    print(name, one.seconds)


def test_a_program_that_only_shows_the_use_of_a_card_runs_on(session):
    if importlib.util.find_spec("pynvml") is None:
        pytest.skip("pynvml is not installed")
    one = session()
    one(TORCH + NVML_ONLY + "None")
    before = one("float(x.sum())")
    (watcher,) = one("[watcher.pid]")
    assert one.order("nap")["state"] == "napping"
    (shown,) = (p for p in one.place.tree.processes if p.ns_pid == watcher)
    assert not processes.is_stopped(shown)
    assert held_by(shown.pid)
    assert one("float(x.sum())") == before
    assert one("int(watcher.stdout.readline()) > 0")
    assert one("watcher.poll()") is None


def test_a_cell_that_is_sent_to_a_kernel_that_naps_is_run(agent, jupyter):
    server = jupyter()
    kernel = server.start_kernel("nap.ipynb")
    other = server.start_kernel("other.ipynb")
    server.run(kernel, TORCH)
    before = server.run(kernel, "float(x.sum())")
    seconds = []
    for _ in range(5):
        path = f"/v1/sessions/{server.place.incarnation}/nap"
        assert agent.events(path, {})[-1]["tree"]["state"] == "napping"
        assert not any(held_by(p.pid) for p in server.place.tree.processes)
        assert server.run(other, "6 * 7") == "42"
        assert agent.tree(server.place)["state"] == "napping"
        began = time.monotonic()
        assert server.run(kernel, "float(x.sum())") == before
        seconds.append(time.monotonic() - began)
        wait_for(lambda: agent.tree(server.place)["state"] == "running", PATIENCE)
    print("from the cell to its result", sorted(round(s, 3) for s in seconds))


def test_a_hundred_naps_leave_nothing_behind(agent, session):
    one = session()
    one(TORCH + "None")
    before = one("float(x.sum())")
    for number in range(100):
        assert one.order("nap")["state"] == "napping"
        assert one.order("wake")["state"] == "running"
        if number == 9:
            held = _descriptors(agent)
    assert one("float(x.sum())") == before
    assert _descriptors(agent) <= held


def _descriptors(agent) -> int:
    return len(list(Path(f"/proc/{agent.popen.pid}/fd").iterdir()))


LARGE = """
import torch
torch.set_num_threads(1)
torch.manual_seed({seed})
x = [torch.randn(1 << 28, device="cuda") for _ in range({gib})]
"""


def test_three_sessions_that_do_not_fit_on_the_card_take_turns(session):
    free, total = _card()
    gib = (total // 3 >> 30) + 1
    if free < 0.95 * total:
        pytest.skip("others use the card")
    # While two change places, both are out.
    if 2.5 * gib > (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 30:
        pytest.skip("the machine's memory holds no two of that size")
    check = "[float(one[::4099].sum()) for one in x]"
    three, sums = [session() for _ in range(3)], []
    for seed, one in enumerate(three):
        if seed == 2:
            assert three[0].order("nap")["state"] == "napping"
        one(LARGE.format(seed=seed, gib=gib) + "None")
        sums.append(one(check))
    for turn in range(2):
        # Who asks first has the card's room taken by the other two.
        assert three[turn + 1].order("nap")["state"] == "napping"
        assert three[turn](check) == sums[turn]
        wait_for(lambda of=three[turn]: of.state == "running", PATIENCE)
    for one, before in zip(three, sums, strict=True):
        if one.state == "running":
            assert one(check) == before
            one.place.kill()
    assert three[2](check) == sums[2]


def _card() -> tuple[int, int]:
    nvml = Nvml()
    try:
        card = nvml.measure(time.time())[0]
        return card.free, card.total
    finally:
        nvml.close()

"""Naps on a real card: what computes there goes on from where it stood."""

import importlib.util
import time

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import held_by
from jupyterhub_gpu_reclaim.linux import processes
from tests.gpu.conftest import PATIENCE
from tests.gpu.test_frameworks import LOADER, PROGRAMS, TORCH
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
def test_a_program_computes_the_same_after_each_of_three_naps(session, name):
    module, setup, check = PROGRAMS[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    one = session()
    one(setup + "None")
    before = one(check)
    for _ in range(3):
        assert one.order("nap")["state"] == "napping"
        assert not any(held_by(pid) for pid in one.pids)
        assert one.order("wake")["state"] == "running"
        assert one(check) == before
    print(name, one.seconds)


def test_loader_workers_nap_and_live_on(session):
    one = session()
    one(LOADER + "None")
    before = one("epoch()")
    for _ in range(2):
        assert one.order("nap")["state"] == "napping"
        # A connection wakes it: its program listens on a port.
        assert one("epoch()") == before
        wait_for(lambda: one.state == "running", PATIENCE)


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


def test_a_session_is_saved_out_of_a_nap_and_naps_after_its_return(session):
    one = session()
    one(TORCH + "None")
    before = one("float(x.sum())")
    for _ in range(2):
        assert one.order("nap")["state"] == "napping"
        one.cycle()
        assert one("float(x.sum())") == before
        assert one.state == "running"


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

"""What the driver cannot checkpoint is refused or taken back, and computes on."""

import shutil
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import clients_of_mps
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
from tests.gpu.test_frameworks import TORCH
from tests.support.agent import wait_for

MANAGED = (
    TORCH
    + """
import ctypes
cuda, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
assert cuda.cuMemAllocManaged(
    ctypes.byref(pointer), ctypes.c_size_t(1 << 20), ctypes.c_uint(1)) == 0
"""
)


def test_managed_memory_is_refused_and_unharmed(session):
    one = session()
    one(MANAGED + "None")
    before = one("float(x.sum())")
    failure = one.capture()["failure"]
    assert failure["code"] == "gpu_unsupported"
    assert "managed memory" in failure["message"]
    assert one("float(x.sum())") == before


def test_a_card_that_does_not_come_to_an_end_is_taken_back(session):
    """About forty seconds of one kernel, and thirty that it is waited for."""
    one = session()
    one(TORCH + "y = x * 3; float(y.sum()); torch.cuda.synchronize()")
    one("torch.cuda._sleep(int(8e10)); None")
    failure = one.capture()["failure"]
    assert failure["code"] == "gpu_busy_too_long"
    assert one("float(y.sum() / x.sum())") > 2.9
    assert one.capture()["checkpoint"]
    one.thaw()
    assert one("float(y.sum() / x.sum())") > 2.9


@pytest.fixture
def mps(agent, monkeypatch):
    """MPS for whoever is started from now on; the agent, which is there, is without."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        pytest.skip("there is no nvidia-cuda-mps-control")
    folder = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))
    for name in ("pipe", "log"):
        (folder / name).mkdir()
        monkeypatch.setenv(f"CUDA_MPS_{name.upper()}_DIRECTORY", str(folder / name))
    said = folder / "said"
    with said.open("wb") as file:
        tell = partial(
            subprocess.run, stdout=file, stderr=file, timeout=60, check=False
        )
        if tell([control, "-d"]).returncode:
            pytest.skip(f"MPS does not start here: {said.read_text()}")
        yield folder
        tell([control], input=b"quit -t 10\n")
    for log in sorted(folder.glob("log/*")):
        print(log.name, log.read_text(errors="replace")[-3000:], sep="\n")
    shutil.rmtree(folder, ignore_errors=True)


def test_a_client_of_mps_is_refused_by_name_and_computes_on(mps, session):
    one = session()
    before = one(TORCH + "float(x.sum())")
    if not list(mps.glob("log/server.log")):
        pytest.skip("the session's program does not come to MPS here")
    cards = Nvml().measure(time.time()) or []
    listed = [u.pid for card in cards for u in card.processes or () if u.mps]
    print("NVML calls them clients:", listed, "we know:", clients_of_mps(one.pids))
    paths = {m.path for pid in one.pids for m in procfs.mappings(pid)}
    print(*sorted(path for path in paths if "mps" in path or "shm" in path), sep="\n")
    failure = one.capture()["failure"]
    assert failure["code"] == "gpu_mps", failure
    assert one("float(x.sum())") == before
    assert one("float((x * 2).sum() / x.sum())") == pytest.approx(2)


PROFILED = """
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU]):
    y = x * 2
"""


def test_a_program_that_has_used_torchs_profiler_is_refused_by_name(session):
    one = session()
    before = one(TORCH + PROFILED + "float(y.sum())")
    failure = one.capture()["failure"]
    assert (failure["code"], failure["retryable"]) == ("gpu_profiled", False)
    assert "torch.profiler" in failure["message"]
    assert one("float((x * 2).sum())") == before


#: A child ten times a second; each lives for a second and a half.
FORKING = """
import os, threading, time
born, on = 0, True
def fork_on():
    global born
    while on:
        if os.fork() == 0:
            time.sleep(1.5)
            os._exit(0)
        born += 1
        time.sleep(0.1)
        while os.waitpid(-1, os.WNOHANG)[0]: pass
forking = threading.Thread(target=fork_on)
forking.start()
def end():
    global on
    on = False
    forking.join()
    while True:
        try: os.wait()
        except ChildProcessError: return
"""


def test_children_that_are_forked_all_along_do_not_hinder_a_capture(session):
    """Some are born between the survey and the moment in which all stand."""
    one = session()
    before = one(TORCH + "float(x.sum())")
    one(FORKING + "None")
    # After the first, the program's files are others than those its children have.
    for _ in range(2):
        born = one("born")
        wait_for(lambda born=born: one("born") > born)
        event = one.capture()
        assert event.get("checkpoint"), event
        one.thaw()
    one("end()")
    one.cycle()
    assert one("float(x.sum())") == before


JAX = """
import jax, jax.numpy as jnp
v = jax.random.normal(jax.random.key(0), (1 << 24,))
g = jax.jit(lambda v: jnp.tanh(v) @ jnp.cos(v))
"""


@pytest.mark.parametrize("step", ["gpu", "connections", "dump"])
def test_a_capture_that_is_called_off_gives_the_memory_back_before_anybody_runs(
    session, step
):
    """JAX has threads of its own that look at memory, and crash where it is not."""
    pytest.importorskip("jax")
    one = session()
    before = one(JAX + "float(g(v))")
    assert one.call_off(step) == "cancelled"
    for _ in range(5):
        assert one("float(g(v))") == before
        time.sleep(0.2)

"""Another program that was started with a card's descriptors, and cannot use them."""

import importlib.util

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import held_by
from jupyterhub_gpu_reclaim.linux import procfs
from tests.gpu.test_frameworks import TORCH

#: A program that answers, and was started by one that closes nothing.
LAUNCH = """
import os, subprocess, sys
def launch():
    global other
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                os.set_inheritable(fd, True)
        except OSError: pass
    code = "for line in __import__('sys').stdin: print(line.strip(), flush=True)"
    other = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], close_fds=False,
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def ask():
    other.stdin.write("well\\n"); other.stdin.flush()
    return other.stdout.readline().strip()
"""
#: Whose descriptors they were has closed its own: the kernel cannot tell any more.
CLOSED_SINCE = (
    """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
pynvml.nvmlDeviceGetMemoryInfo(handle)
"""
    + LAUNCH
    + "launch()\npynvml.nvmlShutdown()\n"
    + TORCH
)
#: PyTorch Lightning does so, to see whether it is a rank of MPI.
MPI = TORCH + "from mpi4py import MPI\nsize = MPI.COMM_WORLD.Get_size()\n"


def told(one) -> list[tuple]:
    """What each process below its first has of a card, for whoever reads a failure."""
    first = one("__import__('os').getpid()")
    return [
        (
            process.name,
            [
                (d.fd, d.target, procfs.fdinfo(process.pid, d.fd).get("flags"))
                for d in held_by(process.pid).descriptors
            ],
            len(held_by(process.pid).mappings),
            sorted(
                {
                    m.path
                    for m in procfs.mappings(process.pid)
                    if "nvidia" in m.path or "cuda" in m.path or "OpenCL" in m.path
                }
            ),
        )
        for process in one.place.tree.processes
        if process.ns_pid > first
    ]


def test_a_program_that_inherited_a_card_comes_back_without_it(session):
    one = session()
    one(TORCH + LAUNCH + "launch()\nNone")
    before = one("(ask(), float(x.sum()))")
    assert before[0] == "well"
    seen = told(one)
    assert any(descriptors for _, descriptors, *_ in seen), seen
    for _ in range(2):
        one.cycle()
        assert one("(ask(), float(x.sum()))") == before
        assert not any(descriptors for _, descriptors, *_ in told(one))


def test_descriptors_whose_owner_has_closed_them_are_refused_by_name(session):
    if importlib.util.find_spec("pynvml") is None:
        pytest.skip("pynvml is not installed")
    one = session()
    one(CLOSED_SINCE + "\nNone")
    before = one("(ask(), float(x.sum()))")
    assert one.capture()["failure"]["code"] == "device_open"
    assert one("(ask(), float(x.sum()))") == before


def test_a_capture_that_is_taken_back_leaves_the_other_program_without_it(session):
    one = session()
    one(TORCH + LAUNCH + "launch()\nNone")
    before = one("(ask(), float(x.sum()))")
    assert one.call_off("dump") == "cancelled"
    assert one("(ask(), float(x.sum()))") == before
    assert not any(descriptors for _, descriptors, *_ in told(one))
    one.cycle()
    assert one("(ask(), float(x.sum()))") == before


def test_the_daemon_of_mpi_comes_back(session):
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    one = session()
    one(MPI + "None")
    before = one("(size, float(x.sum()))")
    seen = told(one)
    print("mpi", seen)
    for _ in range(2):
        event = one.capture()
        assert event.get("checkpoint"), (event["failure"], seen)
        one.thaw()
        one.cycle()
        assert one("(MPI.COMM_WORLD.Get_size(), float(x.sum()))") == before
    assert one("MPI.Finalize()") is None

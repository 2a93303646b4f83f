"""Who has memory of others open, as far as anybody can tell; and how it is asked."""

import os
import re
import struct
import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu import driver_helper
from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import DriverError
from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import examine_sharing
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.linux.processes import Snapshot
from tests.support import gpu

#: Maps the file that its argument names, as libcuda does with a shared event's.
MAPS = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 4096)
page = mmap.mmap(file, 4096)
print("x", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def tree(tmp_path):
    """Two programs, the second of which has mapped the file that it was told of."""
    made = []

    def start(name: str) -> Snapshot:
        for path in (tmp_path / "nothing", tmp_path / name.format(pid=os.getpid())):
            popen = subprocess.Popen(
                [sys.executable, "-c", MAPS, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            made.append(popen)
            popen.stdout.readline()
        pids = [popen.pid for popen in made]
        whole = processes.snapshot(os.getpid())
        return Snapshot(whole.init, tuple(p for p in whole.processes if p.pid in pids))

    yield start
    for popen in made:
        popen.communicate()


def reasons(driver, snapshot: Snapshot, count: int = 2) -> list[tuple[str, int]]:
    users = snapshot.processes[:count]
    found = examine_sharing(driver, users, snapshot, {p.pid for p in users})
    pid = re.compile(r"rocess (\d+)")
    return [(one.code, int(pid.search(one.message)[1])) for one in found]


def test_examine_two_that_share_nothing_are_free_to_go(tree):
    two = tree("x")
    driver = gpu.WellDriver(*(p.pid for p in two.processes))
    assert reasons(driver, two) == []


def test_examine_names_who_has_memory_of_another_open(tree):
    two = tree("x")
    driver = gpu.MemoryOfAnother(*(p.pid for p in two.processes))
    last = max(two.processes, key=lambda p: p.pid)
    assert reasons(driver, two) == [("gpu_ipc", last.ns_pid)]


@pytest.mark.parametrize(
    ("own", "refused"),
    [
        ((600 << 20, 1 << 20), True),
        ((1 << 20, 512 << 20), True),
        ((512 << 20, 0), False),  # one card alone
        ((511 << 20, 511 << 20), False),
    ],
)
def test_examine_names_who_has_much_on_cards_that_read_each_other(tree, own, refused):
    two = tree("x")
    driver = gpu.PeersOfOneProcess(*(p.pid for p in two.processes), own=own)
    last = max(two.processes, key=lambda p: p.pid)
    assert reasons(driver, two) == [("gpu_peers", last.ns_pid)] * refused


def test_examine_cards_that_do_not_reach_each_other_may_be_used_together(tree):
    two = tree("x")
    driver = gpu.PeersOfOneProcess(*(p.pid for p in two.processes))
    driver.peers = lambda: False
    assert reasons(driver, two) == []


def test_examine_where_the_driver_falls_silent_cards_may_reach_each_other(tree):
    two = tree("x")
    driver = gpu.PeersOfOneProcess(*(p.pid for p in two.processes))

    def silent() -> bool:
        raise DriverError("begin", None, "no answer")

    driver.peers = silent
    last = max(two.processes, key=lambda p: p.pid)
    assert reasons(driver, two) == [("gpu_peers", last.ns_pid)]


@pytest.mark.parametrize("fault", [gpu.TightLippedDriver, gpu.BlindDriver])
def test_examine_where_nobody_tells_two_may_share_and_one_cannot(tree, fault):
    two = tree("x")
    driver = fault(*(p.pid for p in two.processes))
    first = two.processes[0]
    assert reasons(driver, two) == [("gpu_ipc_unknown", first.ns_pid)]
    assert reasons(driver, two, count=1) == []


def test_examine_who_has_only_looked_at_a_card_has_no_memory_and_shares_none(tree):
    """Neither the driver nor NVML counts any of whoever has initialised CUDA alone."""
    two = tree("x")
    driver = gpu.BlindDriver(*(p.pid for p in two.processes))
    assert list(examine_sharing(driver, two.processes, two, counted=())) == []


def test_examine_an_event_of_one_that_has_ended_means_memory_that_nobody_counts(tree):
    """The driver counts it as the process's own then."""
    two = tree("cuda.shm.0.3fffff.1")
    driver = gpu.WellDriver(*(p.pid for p in two.processes))
    assert reasons(driver, two) == [("gpu_ipc", two.processes[1].ns_pid)]


def test_examine_an_event_of_one_that_lives_comes_back(tree):
    one = tree("x").processes[0]
    two = tree(f"cuda.shm.0.{one.ns_pid:x}.1")
    driver = gpu.WellDriver(*(p.pid for p in two.processes))
    assert reasons(driver, two, count=len(two.processes)) == []


def test_the_question_is_laid_out_as_the_driver_reads_it():
    """ctrl2080gpu.h: NV2080_CTRL_GPU_GET_PID_INFO_PARAMS, 200 entries of 72 bytes."""
    question = driver_helper.pack_pids([7, 8])
    assert len(question) == 8 + 200 * 72
    assert struct.unpack_from("<I", question) == (2,)
    assert struct.unpack_from("<3I", question, 8 + 72) == (8, 0, 0)


def test_the_answer_is_read_and_a_process_that_is_not_told_of_is_an_error():
    answer = bytearray(driver_helper.pack_pids([7, 8]))
    struct.pack_into("<3Q", answer, 8 + 16, 1, 2, 0)
    struct.pack_into("<3Q", answer, 8 + 72 + 16, 0, 4, 5)
    assert driver_helper.unpack_pids(bytes(answer)) == [(7, 3, 0), (8, 4, 5)]
    struct.pack_into("<I", answer, 8 + 8, 0x57)
    with pytest.raises(OSError, match="0x57"):
        driver_helper.unpack_pids(bytes(answer))

"""Emptying and filling cards: all or nothing, whatever the driver does."""

import os
import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.gpu import cuda
from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import CudaState
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import continuing, processes, procfs, ptrace
from tests.support import gpu
from tests.support.agent import wait_for


@pytest.fixture
def pair():
    if os.geteuid() != 0:
        pytest.skip("needs root: ptrace")
    made = [subprocess.Popen(["sleep", "100"]) for _ in range(2)]
    pids = [popen.pid for popen in made]
    tree = processes.snapshot(os.getpid()).processes
    yield [process for process in tree if process.pid in pids]
    for popen in made:
        popen.kill()
        popen.wait()


def empty(driver, tasks, **options):
    cuda.empty(driver, tasks, lock_seconds=1, seconds=1, **options)


def stands(process) -> bool:
    return wait_for(lambda: processes.is_stopped(process))


def all_run(driver) -> bool:
    return set(driver.states.values()) == {CudaState.RUNNING}


def test_empty_locks_everybody_before_it_moves_anybody(pair):
    driver = gpu.WellDriver(*(p.pid for p in pair))

    empty(driver, pair)

    assert set(driver.states.values()) == {CudaState.CHECKPOINTED}
    assert [call for call, _ in driver.calls] == ["lock"] * 2 + ["checkpoint"] * 2


def test_what_was_emptied_stands_still_until_it_is_let_go_on(pair):
    driver = gpu.WellDriver(*(p.pid for p in pair))
    empty(driver, pair)
    assert all(stands(p) for p in pair)
    driver.calls.clear()

    cuda.fill(driver, pair, seconds=1, moves=[("a", "b")])

    assert all_run(driver)
    assert all(stands(p) for p in pair)
    assert sorted(call for call, _ in driver.calls) == ["restore"] * 2 + ["unlock"] * 2
    assert driver.moves == [("a", "b")]
    continuing.resume(pair)
    wait_for(lambda: not any(processes.is_stopped(p) for p in pair))


def test_only_the_drivers_own_thread_runs_while_memory_moves(program):
    """A thread that counts by itself, and one that is the driver's."""
    driver = Looking(program.pid)

    empty(driver, [program])
    cuda.fill(driver, [program], seconds=1)

    *held, drivers = sorted(ptrace.tasks(program.pid))
    for phase in ("out", "back"):
        assert {driver.seen[phase][tid] for tid in held} == {"t"}
        assert driver.seen[phase][drivers] in "SR"
    wait_for(lambda: set(states(program.pid).values()) == {"T"})
    continuing.resume([program])
    wait_for(lambda: "T" not in states(program.pid).values())


def test_nobody_is_let_go_before_the_driver_thread_has_taken_the_signal_that_stops_it(
    program, lazy
):
    """Else the program runs without its memory, and a thread waits to be let go on."""
    driver = Looking(program.pid)

    for _ in range(3):
        empty(driver, [program])
        assert processes.is_stopped(program)
        cuda.fill(driver, [program], seconds=1)
        assert processes.is_stopped(program)
        continuing.resume([program])


class Looking(gpu.WellDriver):
    """Looks at all threads while memory moves."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.seen = {}

    def checkpoint(self, pid: int, *, seconds: float) -> None:
        super().checkpoint(pid, seconds=seconds)
        self.seen["out"] = self._look(pid)

    def restore(self, pid: int, *, seconds: float, moves=()) -> None:
        super().restore(pid, seconds=seconds)
        self.seen["back"] = self._look(pid)

    def _look(self, pid: int) -> dict[int, str]:
        def found():
            now = states(pid)
            return now if now[max(now)] in "SR" else None

        return wait_for(found)  # one just let go on takes a moment to run


@pytest.fixture
def program():
    if os.geteuid() != 0:
        pytest.skip("needs root: ptrace")
    command = [sys.executable, "-c", THREADS]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as popen:
        try:
            popen.stdout.readline()
            yield one_of(popen.pid)
        finally:
            popen.kill()


@pytest.fixture
def lazy(program):
    """The program runs only when a busy processor has nothing better to do."""
    cpu = min(os.sched_getaffinity(0))
    hog = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(hog) as popen:
        try:
            for tid in [popen.pid, *ptrace.tasks(program.pid)]:
                os.sched_setaffinity(tid, {cpu})
            for tid in ptrace.tasks(program.pid):
                os.sched_setscheduler(tid, os.SCHED_IDLE, os.sched_param(0))
            yield
        finally:
            popen.kill()


def one_of(pid: int) -> processes.Process:
    tree = processes.snapshot(os.getpid()).processes
    return next(process for process in tree if process.pid == pid)


THREADS = """
import threading, time
def work():
    while True: time.sleep(0.001)
for _ in range(3): threading.Thread(target=work, daemon=True).start()
print("x", flush=True)
time.sleep(1000)
"""


def states(pid: int) -> dict[int, str]:
    return {tid: procfs.stat(pid, tid)[0] for tid in ptrace.tasks(pid)}


def test_empty_and_fill_twice_do_nothing_more(pair):
    driver = gpu.WellDriver(*(p.pid for p in pair))
    empty(driver, pair)
    empty(driver, pair)
    cuda.fill(driver, pair, seconds=1)
    cuda.fill(driver, pair, seconds=1)
    assert len(driver.calls) == 8
    assert all_run(driver)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (gpu.ManagedMemory, "gpu_unsupported"),
        (gpu.BusyCard, "gpu_busy_too_long"),
        (gpu.Profiled, "gpu_profiled"),
        (gpu.HangingCheckpoint, "gpu_failed"),
        (gpu.PretendingDriver, "gpu_failed"),
    ],
)
def test_empty_that_fails_for_one_brings_all_back(pair, fault, code):
    driver = fault(*(p.pid for p in pair))

    with pytest.raises(RolledBack) as caught:
        empty(driver, pair)

    assert caught.value.reason.value == code
    assert caught.value.facts["name"] == "sleep"
    assert all_run(driver)


def test_a_process_that_was_profiled_once_is_not_tried_again(pair):
    """The driver says so for the rest of its life."""
    driver = gpu.Profiled(*(p.pid for p in pair))

    with pytest.raises(RolledBack, match=r"torch\.profiler") as caught:
        empty(driver, pair)

    assert not caught.value.retryable
    assert all_run(driver)


def test_a_user_stands_with_its_memory_in_place_when_it_is_settled(program):
    driver, seen = gpu.WellDriver(program.pid), []

    def settle() -> None:
        *held, _ = sorted(states(program.pid).items())
        seen.append((driver.states[program.pid], {state for _, state in held}))

    empty(driver, [program], settle=settle)

    assert seen == [(CudaState.LOCKED, {"t"})]


def test_what_settle_finds_brings_all_back_before_any_memory_has_moved(pair):
    driver = gpu.WellDriver(*(p.pid for p in pair))

    def settle() -> None:
        raise ReclaimError(Reason.GPU_IPC, pid=1, name="x")

    with pytest.raises(RolledBack) as caught:
        empty(driver, pair, settle=settle)

    assert caught.value.reason is Reason.GPU_IPC
    assert "checkpoint" not in {call for call, _ in driver.calls}
    assert all_run(driver)
    assert not any(processes.is_stopped(p) for p in pair)


def test_nobody_waits_for_one_that_cannot_be_held(pair):
    driver = gpu.HeldElsewhere(*(p.pid for p in pair))

    with pytest.raises(RolledBack) as caught:
        empty(driver, pair)

    assert caught.value.reason is Reason.GPU_FAILED
    assert "checkpoint" not in {call for call, _ in driver.calls}
    assert all_run(driver)


def test_empty_that_is_called_off_brings_all_back(pair):
    driver, cancel = gpu.WellDriver(*(p.pid for p in pair)), Cancel()
    cancel.set()

    with pytest.raises(RolledBack, match="called off"):
        empty(driver, pair, cancel=cancel)

    assert all_run(driver)
    assert "checkpoint" not in {call for call, _ in driver.calls}


def test_fill_that_fails_says_who_is_stuck(pair):
    driver = gpu.CardTaken(*(p.pid for p in pair))
    empty(driver, pair)

    with pytest.raises(ReclaimError) as caught:
        cuda.fill(driver, pair, seconds=1)

    assert caught.value.reason.value == "gpu_stuck"
    assert "OUT_OF_MEMORY" in caught.value.detail


def test_fill_of_what_was_only_locked_lets_it_go(pair):
    driver = gpu.WellDriver(*(p.pid for p in pair))
    driver.lock(pair[0].pid, seconds=1)
    cuda.fill(driver, pair, seconds=1)
    assert all_run(driver)


def test_fill_leaves_out_what_has_ended(pair):
    driver = gpu.WellDriver(*(p.pid for p in pair))
    empty(driver, pair)
    os.kill(pair[0].pid, 9)
    os.waitpid(pair[0].pid, 0)
    del driver.states[pair[0].pid]

    cuda.fill(driver, pair, seconds=1)

    assert driver.states == {pair[1].pid: CudaState.RUNNING}


def test_empty_with_a_silent_driver_says_so(pair):
    with pytest.raises(ReclaimError) as caught:
        empty(gpu.SilentDriver(*(p.pid for p in pair)), pair)
    assert caught.value.reason.value == "gpu_stuck"

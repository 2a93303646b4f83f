"""Holding a process still leaves it as it was found."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from jupyterhub_gpu_reclaim.linux import (
    architecture,
    continuing,
    processes,
    procfs,
    ptrace,
)
from jupyterhub_gpu_reclaim.linux.kept_registers import Kept, KeptRegisters
from tests.support.agent import wait_for as wait_until

pytestmark = pytest.mark.skipif(
    not architecture.is_known(), reason="this kind of machine is not known"
)
PR_GET_DUMPABLE = 3


@pytest.fixture
def program():
    code = "import threading, time; threading.Thread(target=time.sleep, args=(99,))"
    child = subprocess.Popen([sys.executable, "-c", f"{code}.start(); time.sleep(99)"])
    wait_until(lambda: len(ptrace.tasks(child.pid)) == 2, 60)
    yield child.pid
    child.kill()
    child.wait(60)


def states(pid: int) -> set[str]:
    return {procfs.stat(pid, tid)[0] for tid in ptrace.tasks(pid)}


def test_stopped_process_is_stopped_again_when_it_is_released(program):
    """Else it is taken for one that its user has continued, and a restore fails."""
    os.kill(program, signal.SIGSTOP)
    wait_until(lambda: states(program) == {processes.STOPPED}, 60)
    for _ in range(200):
        with ptrace.stopped(program) as traced:
            assert traced.call("prctl", PR_GET_DUMPABLE, 0, 0, 0, 0) == 1
        assert states(program) == {processes.STOPPED}


def test_running_process_goes_on_when_it_is_released(program):
    for _ in range(20):
        with ptrace.stopped(program):
            pass
        assert processes.STOPPED not in states(program)


def test_stopped_process_that_is_continued_meanwhile_is_not_waited_for(program):
    os.kill(program, signal.SIGSTOP)
    wait_until(lambda: states(program) == {processes.STOPPED}, 60)
    begun = time.monotonic()
    with ptrace.stopped(program):
        os.kill(program, signal.SIGCONT)
    assert time.monotonic() - begun < 30
    assert processes.STOPPED not in states(program)


def test_process_that_is_continued_inside_a_block_goes_on_at_its_end(program):
    """As a restored server does, which is held until its kernels have answered."""
    os.kill(program, signal.SIGSTOP)
    wait_until(lambda: states(program) == {processes.STOPPED}, 60)
    begun = time.monotonic()
    with ptrace.standing(program, but={*ptrace.tasks(program)} - {program}, seconds=60):
        os.kill(program, signal.SIGCONT)
    assert time.monotonic() - begun < 30
    assert processes.STOPPED not in states(program)


def test_process_that_stays_stopped_is_stopped_at_the_end_of_a_block(program):
    os.kill(program, signal.SIGSTOP)
    wait_until(lambda: states(program) == {processes.STOPPED}, 60)
    for _ in range(200):
        with ptrace.standing(program, but=(), seconds=5):
            pass
        assert states(program) == {processes.STOPPED}


#: Adds up without end, and says so; a register that is not put back ends it.
COMPUTES = """
import hashlib, threading
def compute():
    while True:
        hashlib.sha256(bytes(1000)).digest()
threading.Thread(target=compute).start()
compute()
"""


@pytest.fixture
def computing():
    child = subprocess.Popen([sys.executable, "-c", COMPUTES], stderr=subprocess.PIPE)
    # A thread that begins has all signals blocked for a moment.
    wait_until(lambda: len(now := ticks(child.pid)) == 2 and min(now) > 0, 60)
    yield child
    child.kill()
    child.communicate()


def goes_on(child) -> None:
    before = ticks(child.pid)
    wait_until(
        lambda: all(
            now > was for now, was in zip(ticks(child.pid), before, strict=True)
        ),
        20,
    )
    assert child.poll() is None


def ticks(pid: int) -> list[int]:
    return [int(procfs.stat(pid, tid)[11]) for tid in sorted(ptrace.tasks(pid))]


def test_registers_are_put_back_however_late(computing, monkeypatch):
    """As on a machine that is busy: the limit is for holding, and for each call."""
    monkeypatch.setattr(ptrace, "SECONDS", 0.2)
    for _ in range(3):
        with ptrace.stopped(computing.pid) as traced:
            assert traced.call("prctl", PR_GET_DUMPABLE, 0, 0, 0, 0) == 1
            time.sleep(0.3)
            assert traced.call("prctl", PR_GET_DUMPABLE, 0, 0, 0, 0) == 1
            time.sleep(0.3)
        goes_on(computing)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(ptrace, "kept", KeptRegisters())
    ptrace.kept.use(tmp_path / "held")
    return tmp_path / "held"


def make_calls(pid: int) -> None:
    with ptrace.stopped(pid) as traced, traced.text("text"):
        for tid in ptrace.tasks(pid):
            with traced.thread(tid) as thread:
                thread.call("prctl", PR_GET_DUMPABLE, 0, 0, 0, 0)


def go_on(pid: int) -> None:
    ptrace.go_on(pid, os.pidfd_open(pid))


def is_killed_at(number: int, work: Callable[[int], None], pid: int) -> bool:
    """Do it in a process that is killed after so many requests, if it makes them."""
    tracer = os.fork()
    if tracer == 0:
        requests, request = itertools.count(1), ptrace._ptrace

        def killed(*words: int) -> None:
            request(*words)
            if next(requests) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        ptrace._ptrace = killed
        try:
            work(pid)
        finally:
            os._exit(0)
    _, status = os.waitpid(tracer, 0)
    return os.WIFSIGNALED(status)


def blocked(pid: int) -> list[str]:
    return [procfs.status(pid, tid)["SigBlk"] for tid in sorted(ptrace.tasks(pid))]


@pytest.mark.parametrize("work", [make_calls, go_on])
def test_agent_that_is_killed_while_it_makes_calls_ends_no_program(
    computing, kept, work
):
    """Whatever it was doing to the process, which a signal has stopped."""
    masks = blocked(computing.pid)
    for number in itertools.count(1):
        os.kill(computing.pid, signal.SIGSTOP)
        wait_until(lambda: states(computing.pid) == {processes.STOPPED}, 60)
        if not is_killed_at(number, work, computing.pid):
            break
        assert ptrace.give_back() == []
        assert not list(kept.iterdir())
        os.kill(computing.pid, signal.SIGCONT)
        time.sleep(0.01)
        assert computing.poll() is None, number
        assert blocked(computing.pid) == masks, number
    assert number > 5
    os.kill(computing.pid, signal.SIGCONT)
    goes_on(computing)
    assert not list(kept.iterdir())


def make_calls_while_stopped(pid: int) -> None:
    process = next(
        one for one in processes.snapshot(os.getppid()).processes if one.pid == pid
    )
    with continuing.stopped(process, 5):
        make_calls(pid)


def test_agent_that_is_killed_while_a_running_program_makes_calls_ends_it_not(
    computing, kept
):
    """It would have run on with the registers of the agent's call."""
    masks = blocked(computing.pid)
    for number in itertools.count(1):
        killed = is_killed_at(number, make_calls_while_stopped, computing.pid)
        assert ptrace.give_back() == []
        assert not list(kept.iterdir())
        assert blocked(computing.pid) == masks, number
        goes_on(computing)
        if not killed:
            break
    assert number > 5


def test_file_of_somebody_else_among_what_is_kept_is_left_alone(computing, kept):
    """An agent did not start where there was one."""
    others = [kept / name for name in ("core", ".runs", "12.swp", "-1")]
    for one in others:
        one.write_bytes(bytes(100))
    (kept / "folder").mkdir()
    ptrace.kept.keep(Kept(computing.pid))
    os.kill(computing.pid, signal.SIGSTOP)
    assert ptrace.give_back() == []
    goes_on(computing)
    assert sorted(kept.iterdir()) == sorted([*others, kept / "folder"])


def test_call_that_does_not_return_in_time_is_taken_back(
    computing, tmp_path, monkeypatch
):
    """Opening a FIFO that nobody writes into waits for ever."""
    monkeypatch.setattr(ptrace, "SECONDS", 0.3)
    os.mkfifo(tmp_path / "fifo")
    with (
        ptrace.stopped(computing.pid) as traced,
        traced.text(os.fsencode(tmp_path / "fifo")) as path,
        pytest.raises(ptrace.TraceFailed, match="does not stand still"),
    ):
        traced.call("openat", -100, path, os.O_RDONLY, 0)
    goes_on(computing)


def test_thread_that_does_not_stop_in_time_is_let_go(program, monkeypatch):
    """It is stopped by what was asked of it, some time later."""

    def is_late() -> bool:  # else it has stopped before somebody looked
        try:
            with monkeypatch.context() as patch:
                patch.setattr(ptrace, "SECONDS", -1)
                with ptrace.stopped(program):
                    return False
        except ptrace.TraceFailed:
            return True

    wait_until(is_late, 30)
    time.sleep(0.2)
    assert states(program) == {"S"}
    assert procfs.status(program)["TracerPid"] == "0"

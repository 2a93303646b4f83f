"""Nobody uses memory that is not there, or that somebody else was promised."""

import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations import host_memory
from jupyterhub_gpu_reclaim.node.operations.host_memory import (
    RESERVE_BYTES,
    HostMemory,
    Need,
)
from jupyterhub_gpu_reclaim.node.operations.operations import Operation
from tests.support.agent import COUNTER, Agent, criu_folder, goes_on, wait_for

GIB = 1 << 30


def operation() -> Operation:
    return Operation("restore", SessionKey("ann"), "cp")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Tell how much of it is free, beside what is kept in reserve."""

    def tell(count: int) -> None:
        path = tmp_path / "meminfo"
        kib = (count + RESERVE_BYTES) // 1024
        path.write_text(f"MemTotal: 1 kB\nMemAvailable: {kib} kB\n")
        monkeypatch.setattr(host_memory, "MEMINFO", path)

    tell(12 * GIB)
    return tell


def need(count: int, **more) -> Need:
    return Need(count * GIB, os.getpid(), **more)


def test_what_is_missing_is_said(machine):
    machine(6 * GIB)
    with pytest.raises(Refused) as caught:
        HostMemory().promise(operation(), need(12))
    error = caught.value
    assert (error.reason, error.retryable) == (Reason.NOT_ENOUGH_MEMORY, True)
    assert "13 GB needed, 6.4 GB free, 6.4 GB missing" in error.message


def test_two_at_once_never_count_on_the_same_memory(machine):
    memory, together = HostMemory(), threading.Barrier(8)

    def restore(_) -> str:
        together.wait()
        try:
            memory.promise(operation(), need(5))
        except Refused:
            return "refused"
        return "promised"

    with ThreadPoolExecutor(8) as threads:
        outcomes = sorted(threads.map(restore, range(8)))
    assert outcomes == ["promised"] * 2 + ["refused"] * 6


def test_what_is_in_use_already_is_not_counted_twice(machine):
    memory, first = HostMemory(), operation()
    memory.promise(first, need(8, taken=lambda: 6 * GIB))
    machine(6 * GIB)  # the first one has taken its six

    memory.promise(operation(), need(4))
    with pytest.raises(Refused):
        memory.promise(operation(), need(1))


def test_what_cannot_be_told_counts_as_not_used(machine):
    memory = HostMemory()

    def gone() -> int:
        raise NotFound(Reason.UNKNOWN_SESSION, session="x")

    memory.promise(operation(), need(8, taken=gone))
    with pytest.raises(Refused):
        memory.promise(operation(), need(5))


@pytest.mark.parametrize("way", ["released", "ended"])
def test_a_promise_does_not_outlive_its_operation(machine, way):
    memory, first = HostMemory(), operation()
    memory.promise(first, need(12))
    if way == "released":
        memory.release(first)
    else:
        first.end()
    memory.promise(operation(), need(12))


def test_a_session_that_needs_none_is_never_refused(machine):
    machine(-RESERVE_BYTES)
    HostMemory().promise(operation(), need(0))


def test_what_is_granted_is_there_for_nobody_else(machine):
    memory = HostMemory()
    memory.promise(operation(), need(8))
    assert memory.grant(need(4), lambda: "taken") == "taken"
    with pytest.raises(Refused, match=r"5.* needed, 4.* free"):
        memory.grant(need(5), pytest.fail)


def test_a_limit_that_is_shared_with_others_counts_like_the_machine(
    machine, monkeypatch
):
    """Such as a slice's: the kernel would end somebody in it."""
    slices = {1: {"/slice": 3 * GIB}, 2: {"/slice": 3 * GIB}, 3: {}}
    monkeypatch.setattr(
        host_memory.cgroups, "headroom", lambda pid, lifted: slices[pid]
    )
    memory = HostMemory()
    memory.promise(operation(), Need(2 * GIB, 1))
    with pytest.raises(Refused, match="its memory limit"):
        memory.promise(operation(), Need(2 * GIB, 2))
    memory.promise(operation(), Need(2 * GIB, 3))


@pytest.fixture
def crowded(folder, monkeypatch):
    """A machine whose free memory a test tells, and its agent."""
    if os.geteuid() != 0:
        pytest.skip("needs root: the agent enters namespaces")
    meminfo = folder / "meminfo"

    def tell(count: int) -> None:
        meminfo.write_text(f"MemAvailable: {count // 1024} kB\n")

    tell(64 * GIB)
    monkeypatch.setenv("CROWDED_MEMINFO", str(meminfo))
    with Agent(folder, criu_folder()) as made:
        made.program = "tests.support.altered_agents:crowded"
        made.start()
        yield made, tell


def test_a_session_is_not_brought_back_into_memory_that_is_not_there(
    crowded, counter, places
):
    """The kernel would end somebody else's program for it."""
    agent, tell = crowded
    agent.suspend(counter, "cp")
    place = places("hold")
    tell(RESERVE_BYTES)

    failure = agent.restore(place, "cp")[-1]["failure"]

    assert failure["code"] == "not_enough_memory"
    assert failure["retryable"]
    assert re.search(r"[1-9].* needed, 0 .* free, [1-9].* missing", failure["message"])
    assert not place.tree.processes
    assert len(agent.get("/v1/checkpoints").json()) == 1
    # Once there is room, the same call in the same place does it.
    tell(64 * GIB)
    agent.come_back(place, "cp")
    assert goes_on(place)


#: A program with memory that no look counts as its own.
SHARED = COUNTER.replace(
    "right =",
    """
file = os.memfd_create("shared")
for _ in range(300):
    os.write(file, os.urandom(1 << 20))
right =""",
)


def test_save_point_takes_no_more_than_there_is_and_is_called_off(crowded, places):
    """The kernel would end the agent for it, and the session would stand still."""
    agent, tell = crowded
    place = places("start", sys.executable, "-I", "-S", "-c", SHARED, env={})
    wait_for(lambda: place.output.stat().st_size)
    tell(RESERVE_BYTES + (30 << 20))  # enough for what is its own

    failure = agent.save(place, "cp-1", 1)[-1]["failure"]

    assert failure["code"] == "not_enough_memory"
    assert failure["retryable"]
    assert goes_on(place)
    tree = agent.tree(place)
    assert (tree["state"], tree["operation"]) == ("running", "")
    assert agent.get("/v1/checkpoints").json() == []
    # Once there is room, the next one does it.
    tell(64 * GIB)
    agent.saved(place, "cp-2", 2)
    assert goes_on(place)

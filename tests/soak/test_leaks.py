"""What the soak counts: each program as itself, and no session that has ended."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from demo import processes
from soak.leaks import PROGRAMS, Growth, wait_until_collected

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


@contextmanager
def program(folder: Path, name: str) -> Iterator[int]:
    """A process that passes for that program of a stack; its pid."""
    command = [sys.executable, "-S", "-c", "import time; time.sleep(60)", name]
    with subprocess.Popen(command, env=processes.mark(folder)) as process:
        until = time.monotonic() + 30
        while process.pid not in processes.of(folder, name):
            assert time.monotonic() < until
        try:
            yield process.pid
        finally:
            process.kill()


def test_growth_is_counted_once_a_program_has_loaded_what_it_needs(
    tmp_path: Path,
) -> None:
    growth = Growth(SimpleNamespace(folder=tmp_path))
    with program(tmp_path, PROGRAMS["agent"]):
        for cycles in (10, 13, 20):
            growth.look(cycles)
    (found,) = growth.longest()
    assert (found["first"]["cycles"], found["last"]["cycles"]) == (13, 20)
    assert found["served"] == 7


@pytest.mark.root
def test_growth_of_a_program_is_not_that_of_the_next_one_with_its_pid(
    tmp_path: Path,
) -> None:
    growth = Growth(SimpleNamespace(folder=tmp_path))
    with program(tmp_path, PROGRAMS["proxy"]) as pid:
        growth.look(1)
    time.sleep(0.05)  # the kernel counts starts in hundredths of a second
    for _ in range(50):  # others start programs, too
        LAST_PID.write_text(str(pid - 1))
        with program(tmp_path, PROGRAMS["hub"]) as again:
            if again == pid:
                growth.look(9)
                break
    else:
        pytest.skip("the pid was taken by others each time")
    found = {one["program"]: one["last"]["cycles"] for one in growth.longest()}
    assert found == {"proxy": 1, "hub": 9}


@pytest.mark.parametrize(("state", "limit"), [("gone", 60.0), ("running", 0.2)])
def test_wait_is_for_sessions_that_live(
    tmp_path: Path, state: str, limit: float
) -> None:
    stack = SimpleNamespace(
        folder=tmp_path, patience=1.0, trees=lambda: [{"state": state}]
    )
    began = time.monotonic()
    wait_until_collected(stack, seconds=limit)
    assert (time.monotonic() - began < limit) == (state == "gone")

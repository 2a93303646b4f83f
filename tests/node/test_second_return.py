"""A session comes back from one checkpoint twice, unless its files went on."""

import sys
import time

import pytest

from tests.support.agent import goes_on, wait_for

pytestmark = pytest.mark.shares_an_agent

#: Writes on in a file that it has open.
PROGRAM = """
import sys, time
file = open(sys.argv[1], sys.argv[2])
while True:
    file.write("x"); file.flush()
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""


@pytest.fixture
def file(folder):
    made = folder / f"written-{time.monotonic_ns()}"
    made.write_text("")
    return made


@pytest.fixture
def suspended(agent, places, file):
    """Makes the checkpoint of a session that has been ended."""

    def make(mode: str) -> str:
        place = places("start", sys.executable, "-c", PROGRAM, str(file), mode)
        wait_for(lambda: place.output.stat().st_size)
        name = f"second-{place.incarnation[:8]}"
        assert agent.capture(place, name)[-1].get("checkpoint"), agent.log.read_text()
        agent.release(place, name)
        return name

    return make


def test_what_it_appended_after_a_return_is_no_obstacle_to_a_second(
    agent, places, suspended
):
    name = suspended("a")
    for number in range(3):
        place = places("hold")
        assert agent.restore(place, name)[-1].get("tree"), number
        assert goes_on(place)
        if number == 1:  # as when an earlier version is brought back
            agent.captured(place, f"{name}-later", 2)
        place.kill()


def test_what_it_wrote_after_a_return_is_not_written_over_by_a_second(
    agent, places, suspended, file
):
    """It would go on where it was, in the middle of what is newer."""
    name = suspended("r+")
    place = agent.come_back(places("hold"), name)
    assert goes_on(place)
    place.kill()
    newer = file.read_bytes() + b"by hand"
    file.write_bytes(newer)
    place = places("hold")
    assert agent.restore(place, name)[-1]["failure"]["code"] == "file_changed"
    assert file.read_bytes() == newer


#: A worker that is not forked opens the locks of its queues by their names.
WORKERS = """
import concurrent.futures, multiprocessing, sys

def worker():
    return multiprocessing.current_process().pid

def take(lock):
    with lock:
        pass

if __name__ == "__main__":
    way = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=way)
    first = pool.submit(worker).result()
    lock = way.Lock()
    while True:
        assert pool.submit(worker).result() == first
        other = way.Process(target=take, args=(lock,))
        other.start(); other.join()
        assert other.exitcode == 0
        sys.stdout.write("x"); sys.stdout.flush()
"""


def test_workers_that_are_spawned_go_on_and_so_do_new_ones(agent, places, folder):
    """Their semaphores have lost the name that they are mapped by."""
    file = folder / "workers.py"
    file.write_text(WORKERS)
    place = places("start", sys.executable, str(file))
    wait_for(lambda: place.output.stat().st_size > 3)
    for number in range(2):
        name = f"workers-{number}-{place.incarnation[:8]}"
        agent.suspend(place, name, number + 1)
        place = agent.come_back(places("hold"), name)
        assert goes_on(place)

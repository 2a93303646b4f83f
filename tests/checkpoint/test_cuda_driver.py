"""The helper that talks to the driver: absent, hanging, dying, many calls at once."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import (
    CudaState,
    Driver,
    DriverError,
    Memory,
)

BEGIN = """
import json, os, sys, threading, time
def tell(**facts): os.write(1, json.dumps(facts).encode() + b"\\n")
card = {"uuid": "ab", "name": "T"}
tell(id=0, code=0, name="", cards=[card])
"""
ECHO = """
for line in sys.stdin:
    asked = json.loads(line)
    def work(asked=asked):
        time.sleep(asked["pid"] / 1000)
        tell(id=asked["id"], code=0, state=asked["pid"] % 2)
    threading.Thread(target=work).start()
"""
#: As driver 615 is read to do; the states' numbers are the pid's digits.
MOVES = """
asked_before = 0
for line in sys.stdin:
    asked = json.loads(line)
    states = str(asked["pid"])
    state = int(states[min(asked_before, len(states) - 1)])
    asked_before += 1
    tell(id=asked["id"], code=0, state=state)
"""
HANGS = "sys.stdin.read()"
DIES = "sys.stdin.readline()"
COUNTS = """
for line in sys.stdin:
    asked = json.loads(line)
    told = {pid: ((5, 0), 2) for pid in asked["pids"]}
    tell(id=asked["id"], code=0, memory=told)
"""
REFUSES = """
for line in sys.stdin:
    tell(id=json.loads(line)["id"], code=801, name="CUDA_ERROR_NOT_SUPPORTED")
"""


@pytest.fixture
def made():
    drivers = []

    def make(*program: str) -> Driver:
        command = [sys.executable, "-c", "".join(program)] if program else []
        drivers.append(Driver(command))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


def test_a_machine_without_a_driver_has_no_card(made):
    driver = made('print(\'{"id": 0, "code": -1, "name": "-1"}\', flush=True)')
    assert not driver.present()
    with pytest.raises(DriverError):
        driver.cards()


def test_the_real_helper_answers_or_says_that_there_is_no_driver(made):
    driver = made()
    assert driver.present() is bool(driver.present() and driver.cards())


def test_cards_are_told_once_by_the_helper(made):
    (card,) = made(BEGIN, ECHO).cards()
    assert (card.uuid, card.name) == ("ab", "T")


def test_memory_is_told_by_pid(made):
    told = made(BEGIN, COUNTS).memory({7, 8})
    assert told == {pid: Memory(own=(5, 0), borrowed=2) for pid in (7, 8)}


def test_many_calls_go_at_the_same_time_and_answers_find_their_callers(made):
    driver = made(BEGIN, ECHO)
    driver.present()
    begun = time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        states = list(pool.map(driver.state, range(400, 420)))
    assert states == [CudaState(number % 2) for number in range(20)]
    assert time.monotonic() - begun < 7  # one after the other they take eight


@pytest.mark.parametrize(
    ("states", "last"), [(442, CudaState.CHECKPOINTED), (551, CudaState.LOCKED)]
)
def test_state_while_memory_moves_is_told_when_it_has_moved(made, states, last):
    assert made(BEGIN, MOVES).state(states) is last


def test_state_of_memory_that_moves_for_too_long_is_an_error(made):
    with pytest.raises(DriverError, match="moves after 0 s"):
        made(BEGIN, MOVES).state(4, seconds=0.2)


def test_state_that_is_unknown_is_an_error(made):
    with pytest.raises(DriverError, match="9 is unknown"):
        made(BEGIN, MOVES).state(9)


def test_a_helper_that_hangs_is_ended_and_replaced(made):
    driver = made(BEGIN, HANGS)
    assert driver.present()
    with pytest.raises(DriverError, match="no answer in 0 s") as caught:
        driver.checkpoint(1, seconds=0.1)
    assert caught.value.code is None
    assert driver.cards()


def test_a_helper_that_dies_fails_its_calls_at_once(made):
    driver = made(BEGIN, DIES)
    with pytest.raises(DriverError, match="ended"):
        driver.checkpoint(1, seconds=60)
    assert driver.cards()


def test_what_the_driver_refuses_has_its_code_and_name(made):
    driver = made(BEGIN, REFUSES)
    with pytest.raises(DriverError, match="NOT_SUPPORTED") as caught:
        driver.checkpoint(1, seconds=10)
    assert caught.value.code == 801
    assert driver.state(1) is None

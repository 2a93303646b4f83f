"""Two sessions that share the machine's network, and whose CUDA wants one name.

The driver's library binds ``cuda-uvmfd-<number of the pid namespace>-<pid>`` there, the
kernel gives the number of a namespace that has ended to the next one, and sessions
begin at the same pids.
"""

import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gpu.test_frameworks import TORCH

CHECK = "(float(x.sum()), float((x @ x)))"
#: Others on the machine may be quicker.
TRIES = 30
CLONE_NEWUTS = 0x04000000
FIRST = 3


def number_of(one) -> int:
    """Of the pid namespace that a session lives in."""
    return Path(f"/proc/{one.place.init_pid}/ns/pid").stat().st_ino


def name_of(one) -> str:
    pid = one("__import__('os').getpid()")
    return f"@cuda-uvmfd-{number_of(one)}-{pid}"


def names() -> set[str]:
    """Every abstract name that is bound on this machine."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    # Zeros behind a name are shown as well, in the same way as the one before it.
    return {words[7].rstrip("@") for line in lines if len(words := line.split()) > 7}


def take() -> tuple[int, int]:
    """The number of a new namespace, the lowest that is free; and what holds it."""
    assert ctypes.CDLL(None).unshare(CLONE_NEWUTS) == 0
    held = os.open("/proc/thread-self/ns/uts", os.O_RDONLY)
    return os.fstat(held).st_ino, held


def make_next(number: int) -> list[int]:
    """What holds all lower numbers than that but three, which a place needs before it.

    For the namespaces of files, names and IPC; the next is that of pids. Empty where
    the number is not free.
    """
    held = [take()]
    while held[-1][0] < number:
        held.append(take())
    first, last = held[:FIRST], held[-1]
    takes = last[0] == number and len(held) > FIRST
    beyond = take()  # or this thread would live in the last one
    for _, one in [*first, last] if takes else [*held, beyond]:
        os.close(one)
    return [one for _, one in [*held[FIRST:-1], beyond]] if takes else []


def with_number(session, number: int):
    for _ in range(TRIES):
        with ThreadPoolExecutor(1) as thread:
            held = thread.submit(make_next, number).result()
        made = session() if held else None
        for one in held:
            os.close(one)
        if made is not None and number_of(made) == number:
            return made
        if made is not None:
            made.place.kill()
        time.sleep(0.1)
    pytest.fail(f"the kernel does not give {number} again")


@pytest.fixture
def pair(session):
    """A session that is suspended, and one that CUDA would give its name; not yet."""
    one = session()
    one(TORCH + "None")
    before, name = one(CHECK), name_of(one)
    if name not in names():
        pytest.skip("this driver binds no such name")
    number = number_of(one)
    checkpoint = one.leave()
    other = with_number(session, number)
    assert name_of(other) == name
    return one, checkpoint, before, other


def test_a_session_comes_back_while_another_has_the_name_of_its_cuda(pair):
    one, checkpoint, before, other = pair
    other(TORCH + "None")
    assert name_of(other) in names()

    one.come_back(checkpoint)

    assert one(CHECK) == other(CHECK) == before
    both = {name_of(one), name_of(other)}
    assert len(both) == 2
    for each in (other, one):
        each.cycle()
        assert each(CHECK) == before


def test_cuda_begins_in_a_session_after_another_came_back_that_had_its_name(pair):
    one, checkpoint, before, other = pair
    one.come_back(checkpoint)
    assert name_of(other) not in names()

    other(TORCH + "None")

    assert one(CHECK) == other(CHECK) == before
    for each in (one, other):
        each.cycle()
        assert each(CHECK) == before

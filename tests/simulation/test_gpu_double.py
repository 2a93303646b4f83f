"""The simulated driver: memory goes back only where there is room, and none twice."""

import random
from types import SimpleNamespace

import pytest

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from simulation.doubles.kernel import Kernel
from simulation.doubles.machine import GIB, KERNEL, Machine, Machines, ProgramTree
from simulation.loop import PROGRAM, Program


@pytest.fixture
def machine():
    return Machine("node1", 1, 16 * GIB, lambda *_: None)


@pytest.fixture
def wrong():
    return []


@pytest.fixture
def kernel(machine, wrong):
    machines = Machines()
    machines.by_name["node1"] = machine
    token = PROGRAM.set(Program("the agent"))
    yield Kernel(machines, random.Random(1), lambda law, _: wrong.append(law))
    PROGRAM.reset(token)


def _emptied(machine, name):
    """A restored tree whose GPU memory is its processes' still; it, and who has it."""
    tree = ProgramTree("word", "token", 80, 9 * GIB, on_gpu=False)
    place = machine.add(SessionKey(name), name, tree=tree)
    return tree, [SimpleNamespace(pid=place.pid + KERNEL)]


def test_fill_whose_room_others_take_meanwhile_fails_and_moves_nothing(
    kernel, machine, wrong
):
    tree, tasks = _emptied(machine, "ada")
    kernel.takes = lambda *_: setattr(machine, "taken_by_others", 12 * GIB)
    with pytest.raises(ReclaimError) as caught:
        kernel.fill_gpu(None, tasks)
    assert caught.value.reason is Reason.GPU_STUCK
    assert not tree.on_gpu
    assert wrong == []


def test_fill_beside_another_that_was_promised_the_same_room_is_wrong(
    kernel, machine, wrong
):
    _, first = _emptied(machine, "ada")
    _, second = _emptied(machine, "bob")
    between = iter([lambda: kernel.fill_gpu(None, second), lambda: None])
    kernel.takes = lambda *_: next(between)()
    with pytest.raises(ReclaimError):
        kernel.fill_gpu(None, first)
    assert wrong == ["room"]

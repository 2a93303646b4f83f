"""What stands for a part in the simulator and in tests takes the part's calls."""

import asyncio
import inspect
import types

import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets.held import HeldPorts
from jupyterhub_gpu_reclaim.common.term import Term
from jupyterhub_gpu_reclaim.controlplane.controller import Controller
from jupyterhub_gpu_reclaim.controlplane.plans import Planner
from simulation.mutants import MUTANTS
from simulation.mutants.patch import nothing, yes
from simulation.programs import PortsHeld, TermOnDisk
from tests.service.conftest import SessionsInMemory


def unlike(double: type, real: type) -> list[str]:
    """The public methods of ``real`` that ``double`` lacks or that take others."""
    return [
        name
        for name, method in inspect.getmembers(real, inspect.isfunction)
        if not name.startswith("_")
        and _names(getattr(double, name, None)) != _names(method)
    ]


def _names(method: object) -> list[str] | None:
    return list(inspect.signature(method).parameters) if callable(method) else None


def test_held_ports_take_the_calls_of_the_real_ones():
    assert unlike(PortsHeld, HeldPorts) == []


def test_sessions_in_memory_take_every_call_of_the_api():
    of_the_program_itself = {"culls_after", "start", "stop"}
    assert set(unlike(SessionsInMemory, Controller)) == of_the_program_itself
    of_the_worker = {"act", "answer", "call_off", "moved"}
    assert set(unlike(SessionsInMemory, Planner)) == {"lately_culled", *of_the_worker}


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_mutant_takes_the_calls_of_what_it_stands_for(name):
    """Else a seed is found by the error that the mutant itself makes."""
    for owner, attribute, stands_for_it in MUTANTS[name].patches:
        real = getattr(owner, attribute)
        if inspect.isfunction(real) and stands_for_it not in (nothing, yes):
            taken = inspect.signature(real).parameters.values()
            offered = inspect.signature(stands_for_it)
            assert _takes(offered, list(taken)), f"{owner.__name__}.{attribute}"


def _takes(offered: inspect.Signature, taken: list[inspect.Parameter]) -> bool:
    in_order = [one for one in taken if one.kind <= one.POSITIONAL_OR_KEYWORD]
    by_name = [one.name for one in taken if one.kind is one.KEYWORD_ONLY]
    try:
        offered.bind(*in_order, **dict.fromkeys(by_name))
    except TypeError:
        return False
    return True


def test_next_agent_of_a_machine_knows_the_highest_term():
    machine = types.SimpleNamespace(term=b"", state_full=False)
    program = types.SimpleNamespace(effect=lambda: None)
    term = Term(number=7, holder="one")
    asyncio.run(TermOnDisk(machine, program).hear(term, order=True))
    assert TermOnDisk(machine, program).number == 7

"""The simulator can fail: it finds defects that were mended once, by a seed of each.

The seed is one that finds it, not always the first.
"""

import pytest

from simulation.mutants import MUTANTS
from simulation.plan import draw
from simulation.runner import run_plan
from tests.support.long_stories import but


@pytest.mark.parametrize("name", but(sorted(MUTANTS), *sorted(MUTANTS)[::5]))
def test_mutant_is_found_by_its_seed(name):
    mutant = MUTANTS[name]
    assert run_plan(mutant.plan(), mutant.patches).failed


@pytest.mark.long  # new seeds find nothing at each push (test_seeds.py)
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_seed_of_a_mutant_finds_nothing_else(name):
    assert run_plan(MUTANTS[name].plan()).violations == []


def test_plan_without_its_last_event_keeps_the_others():
    plan = draw(3)
    shorter = plan.without(len(plan.events) - 1)
    assert shorter.events == plan.events[:-1]
    assert run_plan(shorter).plan == shorter

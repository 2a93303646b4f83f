"""A seed is a run: the same history again, in this process and in any other."""

import os
import subprocess
import sys
from pathlib import Path

from simulation.plan import draw
from simulation.runner import run_plan, run_seed

ROOT = Path(__file__).parents[2]
#: One with several sessions and many faults.
SEED = 4


def test_seed_run_twice_has_the_same_history():
    first, second = run_seed(SEED), run_seed(SEED)
    assert first.lines == second.lines
    assert first.digest == second.digest


def test_seed_in_another_process_has_the_same_history():
    # Whose sets and dicts of texts are in another order.
    told = subprocess.run(
        [sys.executable, "-m", "simulation", "--seed", str(SEED)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert run_seed(SEED).digest in told.stdout.splitlines()[-1]


def test_other_seed_has_another_history():
    assert run_seed(SEED).digest != run_seed(SEED + 1).digest


def test_plan_with_an_event_less_has_another_history():
    plan = draw(SEED)
    assert run_plan(plan).digest != run_plan(plan.without(0)).digest

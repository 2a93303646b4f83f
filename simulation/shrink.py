"""Makes a failing run short: leaves out events as long as it still fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.runner import Result, run_plan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulation.mutants.patch import Patch
    from simulation.plan import Plan


def shrink(plan: Plan, patches: Iterable[Patch] = ()) -> Result:
    """The shortest plan that was found to break the same law, and its run."""
    table = tuple(patches)
    best = run_plan(plan, table)
    law = _law(best)
    found = True
    while found and best.failed:
        found = False
        for index in reversed(range(len(best.plan.events))):
            if index >= len(best.plan.events):
                continue
            result = run_plan(best.plan.without(index), table)
            if result.failed and _law(result) == law:
                best, found = result, True
    return best


def _law(result: Result) -> str:
    return result.violations[0].partition(":")[0] if result.violations else ""

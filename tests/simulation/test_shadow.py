"""What agent, store and Hub say, and the journal's rows, tell of the same phases."""

from __future__ import annotations

import pytest

from simulation.runner import run_seed
from simulation.shadow import AT_REST, Shadow

FIRST, SEEDS = 8100000000, 40


@pytest.mark.timeout(900)
def test_at_rest_the_computed_phase_is_the_journals():
    shadow = Shadow()
    for seed in range(FIRST, FIRST + SEEDS):
        shadow.seed = seed
        assert run_seed(seed, shadow.patches()).violations == []
    confused = [
        kind
        for kind in shadow.different
        if kind.when == AT_REST
        and {kind.journal.split()[0], kind.derived.split()[0]}
        == {"suspended", "stopped"}
    ]
    assert confused == [], shadow.table()
    assert shadow.equal[AT_REST] > 1000

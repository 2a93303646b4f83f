"""What is concluded from a soak: the bound of the rate, and sums over several runs."""

import random

import pytest

from soak import table
from soak.killer import Plan
from soak.ledger import Failure, Ledger, bound, read


@pytest.mark.parametrize(
    ("failures", "tries", "expected"),
    [(0, 2000, 0.001497), (1, 100, 0.0466), (5, 200, 0.0519), (3, 3, 1.0)],
)
def test_bound_of_known_cases_is_the_one_of_the_tables(failures, tries, expected):
    assert bound(failures, tries) == pytest.approx(expected, rel=2e-3)


def test_bound_with_more_tries_and_no_failure_sinks():
    assert bound(0, 10) > bound(0, 100) > bound(0, 1000) > 0


def test_plans_of_one_seed_are_the_same_and_as_frequent_as_the_rate_says():
    one, two = ([Plan.draw(random.Random(n), 0.3) for n in range(2000)] for _ in "ab")
    assert one == two
    assert sum(plan is not None for plan in one) / 2000 == pytest.approx(0.3, abs=0.05)


def test_runs_in_a_file_are_added_up(tmp_path):
    file = tmp_path / "runs.jsonl"
    for failed in (False, True):
        ledger = Ledger({"at": "today"})
        ledger.begin("threads")
        for _ in range(10):
            ledger.count("threads", saved=True, seconds=2.0)
        ledger.kills["agent"] += 1
        if failed:
            ledger.fail(Failure("threads", "ann", 3, "lost", "gone", "", "/logs"))
        with file.open("a") as runs:
            runs.write(ledger.line() + "\n")
    page = table.markdown(read([file]))
    assert "| cycles, each compared | 20 |" in page
    assert "| sessions lost | 1 |" in page
    assert "| agent | 2 |" in page
    assert "| threads | 2 | 20 | 0 | 1 | 2.0 |" in page

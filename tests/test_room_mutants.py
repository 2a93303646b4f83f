"""The mutants of ``benchmarks/room_mutants.py`` fit the source as it is now."""

import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.room_mutants import MUTANTS, Found, Mutant, by_mutant

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "tests.md"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.room)
def test_old_text_of_a_mutant_is_in_the_source_exactly_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old
    for name in mutant.tests.split():
        assert (ROOT / "tests" / mutant.room / f"{name}.py").is_file()


def test_every_room_that_the_page_names_has_a_mutant_of_its_own() -> None:
    rooms = [mutant.room for mutant in MUTANTS]
    assert len(rooms) == len(set(rooms))
    _, _, after = PAGE.read_text().partition("## What only they would catch")
    named = re.findall(r"^\| (`.*?) \|", after.partition("\n## ")[0], re.MULTILINE)
    assert named
    assert {room for row in named for room in re.findall(r"`(\w+)`", row)} <= {*rooms}


def test_failure_in_another_file_than_that_of_a_mutant_is_nobodys() -> None:
    mutant = Mutant("node", "test_nap", "a.py", "a", "b", "It does not nap.")
    failed = ["tests.node.test_nap test_x", "tests.node.test_napping test_x"]
    failed += ["tests.node.test_nap.TestX test_y", "tests.hub.test_nap test_x"]
    found = Found(Counter(), failed)
    assert by_mutant([mutant], found) == {
        "node": [failed[0], failed[2]],
        "": [failed[1], failed[3]],
    }

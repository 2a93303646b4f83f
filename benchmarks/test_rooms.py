"""What the tests take, room by room, as the table of docs/reference/tests.md.

PYTEST_ADDOPTS=--junitxml=one.xml make test
.venv/bin/python benchmarks/test_rooms.py one.xml [all.xml] --page PAGE

The first file is of ``make test``, the second one of ``make test-all``. Seconds are
those of the tests, of which four run at a time.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parent))

import marked_page

TESTS = Path(__file__).parents[1] / "tests"


class Rooms(NamedTuple):
    """What one run took."""

    tests: Counter[str]
    seconds: Counter[str]

    def cells(self, room: str) -> str:
        return f"{self.tests[room]:,} | {self.seconds[room]:,.0f}"


def read(file: Path) -> Rooms:
    """The run that a JUnit file tells of."""
    rooms = Rooms(Counter(), Counter())
    # Ours: pytest has written it.
    for case in ElementTree.parse(file).iter("testcase"):
        if case.find("skipped") is None and case.find("error") is None:
            room = case.get("classname", "").split(".")[1]
            room = room if (TESTS / room).is_dir() else "others"
            rooms.tests[room] += 1
            rooms.seconds[room] += float(case.get("time", 0))
    return rooms


def table(runs: list[Rooms]) -> str:
    """Rows by room, the slowest first, and their sum."""
    heads = ["make test", "make test-all"][: len(runs)]
    head = ["room", *(f"{name}: tests | seconds" for name in heads)]
    lines = [f"| {' | '.join(head)} |", "| --- " * (1 + 2 * len(runs)) + "|"]
    for room, _ in runs[-1].seconds.most_common():
        lines.append(f"| {room} | {' | '.join(run.cells(room) for run in runs)} |")
    sums = [f"{run.tests.total():,} | {run.seconds.total():,.0f}" for run in runs]
    return "\n".join([*lines, f"| all | {' | '.join(sums)} |"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    found = table([read(file) for file in options.files])
    print(found)
    if options.page:
        today = datetime.datetime.now(tz=datetime.UTC).date()
        marked_page.put(options.page, "benchmarks/test_rooms.py", f"{today}\n\n{found}")


if __name__ == "__main__":
    main()

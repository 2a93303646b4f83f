"""Naps beside suspends, kills and nothing, at one to four seats a card.

    .venv/bin/python -m benchmarks.simulation_seats RUNS [--seeds 1 2 3] [--jobs 2]

Runs ``simulation.py --shared`` for each strategy, number of seats, size of people's
sessions and seed, in a program of its own, and leaves one file of each in the folder
RUNS; what is there already is not run again. Then it prints the tables of
``docs/explanation/simulation-naps.md``: means over the seeds, with the lowest and the
highest where that says something, and ratios against ``kill`` with the same people and
seats. ``simulation_plots.py`` draws the same files.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

STRATEGIES = ("nothing", "kill", "idle", "naps", "naps-idle")
SEATS = (1, 2, 3, 4)
SIZES = (12, 24)  #: median GB of GPU memory of a session
PEER = "kill"
CARDS, PEOPLE = 4, 100
BEAT = 10  #: seconds between two samples, and two ticks: the service's defaults

COLUMNS = (
    "seats",
    "strategy",
    "people served per card",
    "against kill",
    "turned away, %",
    "GPU-hours at work / held idle",
    "against kill",
    "GPU memory held idle, card-hours",
    "sessions lost",
    "wait: median / p95, s",
    "cells that waited over 3 s / 30 s, %",
    "a person's hour of work: waited / slowed, min",
    "wakes per hour of work",
    "thrashed of napped for others",
    "suspends (too soon)",
)

Runs = dict[tuple[str, int, int], list[dict[str, Any]]]


def main() -> None:
    """Run what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    options.runs.mkdir(exist_ok=True)
    each = itertools.product(options.seeds, STRATEGIES, SEATS, SIZES)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda what: _run(options.runs, *what), each))
    found = read(options.runs)
    for size in SIZES:
        _table(found, size)


def _name(strategy: str, seats: int, size: int, seed: int | str) -> str:
    return f"{strategy}-{seats}-seats-{size}-gb-seed-{seed}.json"


def _run(folder: Path, seed: int, strategy: str, seats: int, size: int) -> None:
    path = folder / _name(strategy, seats, size, seed)
    if path.exists():
        return
    numbers = {
        "--people": PEOPLE,
        "--gpus": CARDS,
        "--seats": seats,
        "--vram-gb": size,
        "--seed": seed,
    }
    more = [str(each) for pair in numbers.items() for each in pair]
    parts = path.with_suffix(".part")
    command = [sys.executable, "-m", "benchmarks.simulation", "--shared", *more]
    command += ["--beat", str(BEAT)]
    command += ["--strategy", strategy, "--out", str(parts)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    parts.rename(path)


def read(folder: Path) -> Runs:
    """The runs of all seeds that are there, by strategy, seats and size."""
    return {
        what: [
            json.loads(path.read_text())
            for path in sorted(folder.glob(_name(*what, seed="*")))
        ]
        for what in itertools.product(STRATEGIES, SEATS, SIZES)
    }


def value(run: dict[str, Any], name: str) -> float:
    """One measure of one run."""
    cards, hours = run["card_hours"], max(run["hours_of_work"], 1e-9)
    found: dict[str, float] = {
        "worked": cards["worked"],
        "seated idle": cards["seated"] - cards["worked"],
        "memory idle": cards["memory_idle"],
        "served": run["people_served"] / CARDS,
        "turned away": 100 * run["people_given_up"] / run["people_visits"],
        "median": run["wait_all_seconds"].get("median", 0.0),
        "p95": run["wait_all_seconds"].get("p95", 0.0),
        "over 3 s": 100 * run["cells_over_3_s"],
        "over 30 s": 100 * run["cells_over_30_s"],
        "lost": run["lost"],
        "waited": 60 * run["hours_waited"] / hours,
        "slowed": 60 * run["hours_shared"] / hours,
        "woken": run["woken"] / hours,
        "for room": run["woken_room"],
        "thrashed": run["thrashed"],
        "suspends": run["suspends"],
        "soon": run["wrong_suspends"],
    }
    return found[name]


def mean(runs: list[dict[str, Any]], name: str) -> float:
    """Over the seeds."""
    return statistics.fmean(value(run, name) for run in runs)


def _table(found: Runs, size: int) -> None:
    print(f"\nSessions of {size} GB (median)\n")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for seats, strategy in itertools.product(SEATS, STRATEGIES):
        row = _row(found[strategy, seats, size], found[PEER, seats, size])
        print(f"| {seats} | {strategy} | " + " | ".join(row) + " |")


def _row(runs: list[dict[str, Any]], peer: list[dict[str, Any]]) -> list[str]:
    def at(name: str, digits: int = 0) -> str:
        return f"{mean(runs, name):.{digits}f}"

    def against(name: str) -> str:
        return f"{mean(runs, name) / mean(peer, name):.2f}"

    served = sorted(value(run, "served") for run in runs)
    return [
        f"{at('served', 1)} ({served[0]:.1f} to {served[-1]:.1f})",
        against("served"),
        at("turned away"),
        f"{at('worked')} / {at('seated idle')}",
        against("worked"),
        at("memory idle"),
        at("lost"),
        f"{at('median')} / {at('p95')}",
        f"{at('over 3 s', 1)} / {at('over 30 s', 1)}",
        f"{at('waited', 1)} / {at('slowed', 1)}",
        at("woken", 1),
        f"{at('thrashed')} of {at('for room')}",
        f"{at('suspends')} ({at('soon')})",
    ]


if __name__ == "__main__":
    main()

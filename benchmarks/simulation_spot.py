"""A week on nodes that are taken away: save points and drains beside suspends alone.

    .venv/bin/python -m benchmarks.simulation_spot RUNS [--seeds 1 2 3] [--people 300]

Runs ``simulation.py --spot`` for each strategy and seed, in a program of its own and
one after the other, and leaves one file of each in the folder RUNS; what is there
already is not run again. Then it prints the tables of
``docs/explanation/simulation-spot.md``: sums over the seeds. ``simulation_plots.py``
draws the same files.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

STRATEGIES = {
    "nothing": ["--strategy", "nothing"],
    "idle": ["--strategy", "idle"],
    "idle, drained": ["--strategy", "idle", "--drain"],
    "naps, saved": ["--strategy", "naps", "--save-every", "900"],
    "naps, saved, drained": ["--strategy", "naps", "--save-every", "900", "--drain"],
}
NOTICES = ("0", "30", "120")  #: seconds
NODES, DAYS = 10, 7
BEAT = 60  #: seconds between two samples, and two ticks
PEOPLE_PER_GPU = 10

COLUMNS = (
    "strategy",
    "sessions that ended with a node",
    "of which lost work",
    "of which nothing came back",
    "work lost, min: median / total",
    "GPU-hours held idle",
    "GPU-hours at work",
    "suspends",
    "save points",
    "TB written",
)

Runs = dict[str, list[dict[str, Any]]]


def main() -> None:
    """Run what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--people", type=int, default=300)
    options = parser.parse_args()
    options.runs.mkdir(exist_ok=True)
    for seed, strategy in itertools.product(options.seeds, STRATEGIES):
        _run(options.runs, seed, strategy, options.people)
    found = read(options.runs)
    _table(COLUMNS, [_row(name, runs) for name, runs in found.items()])
    notices = [f"{notice} s" for notice in NOTICES]
    _table(
        ("strategy", *notices), [_by_notice(name, each) for name, each in found.items()]
    )


def _name(strategy: str, seed: int | str) -> str:
    return f"spot-{strategy.replace(', ', '-')}-seed-{seed}.json"


def _run(folder: Path, seed: int, strategy: str, people: int) -> None:
    path = folder / _name(strategy, seed)
    if path.exists():
        return
    numbers = {
        "--people": people,
        "--gpus": people // PEOPLE_PER_GPU,
        "--spot": NODES,
        "--days": DAYS,
        "--beat": BEAT,
        "--seed": seed,
    }
    more = [str(each) for pair in numbers.items() for each in pair]
    parts = path.with_suffix(".part")
    command = [sys.executable, "-m", "benchmarks.simulation", *more]
    command += [*STRATEGIES[strategy], "--out", str(parts)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    parts.rename(path)


def read(folder: Path) -> Runs:
    """The runs of all seeds that are there, by strategy."""
    return {
        strategy: [
            json.loads(path.read_text())
            for path in sorted(folder.glob(_name(strategy, seed="*")))
        ]
        for strategy in STRATEGIES
    }


def lost_minutes(runs: list[dict[str, Any]], notice: str = "all") -> float:
    """Minutes of work, of all seeds."""
    return sum(float(run["spot"][notice]["lost_minutes"]) for run in runs)


def _row(name: str, runs: list[dict[str, Any]]) -> list[str]:
    def total(key: str) -> float:
        return sum(float(run.get(key, 0)) for run in runs)

    def ended(key: str) -> float:
        return sum(float(run["spot"]["all"][key]) for run in runs)

    minutes = [each for run in runs for each in run["spot_lost_minutes"] if each]
    held, worked = total("held_gpu_hours"), total("worked_gpu_hours")
    return [
        name,
        f"{ended('ended'):,.0f}",
        f"{ended('lost_work'):,.0f}",
        f"{ended('nothing_back'):,.0f}",
        f"{statistics.median(minutes or [0]):.0f} / {sum(minutes):,.0f}",
        f"{held - worked:,.0f}",
        f"{worked:,.0f}",
        f"{total('suspends'):,.0f}",
        f"{total('save_points'):,.0f}",
        f"{total('written_gb') / 1000:.0f}",
    ]


def _by_notice(name: str, runs: list[dict[str, Any]]) -> list[str]:
    return [name, *[f"{lost_minutes(runs, notice):,.0f}" for notice in NOTICES]]


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> None:
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()

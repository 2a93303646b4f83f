"""Draws what ``simulation.py`` has written, for ``docs/explanation/``.

    python -m benchmarks.simulation_plots week RUNS docs/images
    python -m benchmarks.simulation_plots seats RUNS docs/images
    python -m benchmarks.simulation_plots spot RUNS docs/images

RUNS is a folder with ``nothing.json``, ``kill.json``, ``idle.json``, ``pressure.json``,
or the one of ``simulation_seats.py`` or ``simulation_spot.py``. Needs
``benchmarks/requirements.txt``. Small files: of several days one point an hour, and
text stays text.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from benchmarks import simulation_seats as seats
from benchmarks import simulation_spot as spot

TITLES = {
    "nothing": "Nothing is done",
    "kill": "Killed after 1 h (idle-culler's rule)",
    "idle": "Suspended after 15 min",
    "pressure": "The same, after 5 min while somebody waits",
}
WEEK = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
WORK, HELD, QUEUE = "#0072b2", "#e69f00", "#000000"
EVERY = 4  #: points of a quarter of an hour
STRATEGIES = {
    "nothing": ("nothing is done", "#000000"),
    "kill": ("killed after 1 h", "#d55e00"),
    "idle": ("suspended after 15 min", "#e69f00"),
    "naps": ("nap after 3 min, suspended after 1 h", "#56b4e9"),
    "naps-idle": ("nap after 3 min, suspended after 15 min", "#0072b2"),
}
SPOT = {
    "nothing": ("nothing is done", "#000000"),
    "idle": ("suspended after 15 min", "#e69f00"),
    "idle, drained": ("the same, and drained at a notice", "#d55e00"),
    "naps, saved": ("nap after 3 min, saved in each nap", "#56b4e9"),
    "naps, saved, drained": ("the same, and drained at a notice", "#0072b2"),
}
MEASURES = {
    "served": "people served\nper card and day",
    "worked": "GPU-hours at work\n(4 cards, a day)",
    "memory idle": "GPU memory held idle\n(card-hours)",
    "over 30 s": "cells that waited\nover 30 s (%)",
}


def main(what: str, runs: Path, images: Path) -> None:
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "gpu-reclaim",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    if what == "seats":
        _seats(seats.read(runs), images / "simulation-seats.svg")
        return
    if what == "spot":
        _spot(spot.read(runs), images / "simulation-spot.svg")
        return
    found = {
        name: json.loads((runs / f"{name}.json").read_text())
        for name in TITLES
        if (runs / f"{name}.json").exists()
    }
    days = min(run["days_done"] for run in found.values())
    _use(found, days, images / "simulation-gpus.svg")


def _use(found: dict, days: int, path: Path) -> None:
    figure, axes = plt.subplots(
        len(found), 1, figsize=(7.2, 1.9 * len(found)), sharex=True, sharey=True
    )
    for axis, (name, run) in zip(axes, found.items(), strict=True):
        every = EVERY if days > 1 else 2
        points = run["points"][: days * 96 : every]
        step = every * run["point_seconds"] / 3600
        at = [step * (index + 1) for index in range(len(points))]
        held, busy, _, queue = map(list, zip(*points, strict=True))
        axis.fill_between(at, busy, color=WORK, lw=0, label="GPUs at work")
        axis.fill_between(at, busy, held, color=HELD, lw=0, label="GPUs held idle")
        axis.plot(at, queue, color=QUEUE, lw=1.4, label="people who wait")
        axis.set_title(TITLES[name], fontsize=9, loc="left")
        axis.set_xlim(0, 24 * days)
        axis.set_ylim(0, run["gpus"] * 1.3)
    axes[0].legend(ncols=3, frameon=False, fontsize=8, loc="upper right")
    if days == 1:
        hours = range(0, 25, 6)
        axes[-1].set_xticks(hours, [f"{hour}:00" for hour in hours])
    else:
        noons = range(12, 24 * days, 24)
        axes[-1].set_xticks(noons, [WEEK[noon // 24 % 7] for noon in noons])
    _save(figure, path)


def _seats(found: seats.Runs, path: Path) -> None:
    """Each measure by the number of seats, for small and for large sessions."""
    figure, axes = plt.subplots(
        len(MEASURES), len(seats.SIZES), figsize=(7.2, 8.0), sharex=True, sharey="row"
    )
    for (row, (measure, label)), (column, size) in itertools.product(
        enumerate(MEASURES.items()), enumerate(seats.SIZES)
    ):
        axis = axes[row][column]
        for shift, (name, (title, color)) in enumerate(STRATEGIES.items()):
            each = [
                [seats.value(run, measure) for run in found[name, count, size]]
                for count in seats.SEATS
            ]
            at = [count + 0.05 * (shift - 2) for count in seats.SEATS]
            means = [statistics.fmean(values) for values in each]
            axis.plot(at, means, color=color, marker="o", ms=3, lw=1.3, label=title)
            low, high = [min(values) for values in each], [max(v) for v in each]
            axis.vlines(at, low, high, color=color, lw=0.8)
        if row == 0:
            axis.set_title(f"sessions of {size} GB (median)", fontsize=9)
        if column == 0:
            axis.set_ylabel(label)
    for axis in axes[:, 0]:
        axis.set_ylim(bottom=0)
    for axis in axes[-1]:
        axis.set_xticks(seats.SEATS)
        axis.set_xlabel("seats per card")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, ncols=2, frameon=False, fontsize=8, loc="upper center"
    )
    _save(figure, path, top=0.92)


def _spot(found: spot.Runs, path: Path) -> None:
    """Hours of work that were lost, by the notice that the nodes gave."""
    figure, axis = plt.subplots(figsize=(7.2, 3.2))
    width = 0.8 / len(SPOT)
    for shift, (name, (title, color)) in enumerate(SPOT.items()):
        hours = [spot.lost_minutes(found[name], each) / 60 for each in spot.NOTICES]
        at = [place + width * shift for place in range(len(hours))]
        axis.bar(at, hours, width=0.9 * width, color=color, label=title)
    middles = [place + 0.4 - width / 2 for place in range(len(spot.NOTICES))]
    axis.set_xticks(middles, ["no notice", "30 s", "120 s"])
    axis.set_ylabel("hours of work lost")
    figure.legend(ncols=2, frameon=False, fontsize=8, loc="upper center")
    _save(figure, path, top=0.84)


def _save(figure: plt.Figure, path: Path, top: float = 1.0) -> None:
    figure.tight_layout(rect=(0, 0, 1, top))
    figure.savefig(path, metadata={"Date": None})
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

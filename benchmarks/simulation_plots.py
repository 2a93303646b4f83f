"""Draws what ``simulation.py`` has written, for ``docs/explanation/policy.md``.

    python benchmarks/simulation_plots.py RUNS docs/images

RUNS is a folder with ``nothing.json``, ``kill.json``, ``idle.json``, ``pressure.json``.
Needs ``benchmarks/requirements.txt``. Small files: lines are thinned to one point an
hour, and text stays text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

TITLES = {
    "nothing": "Nothing is done",
    "kill": "Killed after 1 h (idle-culler's rule)",
    "idle": "Suspended after 15 min",
    "pressure": "The same, after 5 min while somebody waits",
}
WORK, HELD, SAVED, QUEUE = "#0072b2", "#e69f00", "#009e73", "#555555"
EVERY = 4  #: points of a quarter of an hour


def main(runs: Path, images: Path) -> None:
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "gpu-reclaim",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    found = {
        name: json.loads((runs / f"{name}.json").read_text())
        for name in TITLES
        if (runs / f"{name}.json").exists()
    }
    days = min(run["days_done"] for run in found.values())
    _use(found, days, images / "simulation-gpus.svg")
    _waits(found, images / "simulation-waits.svg")


def _use(found: dict, days: int, path: Path) -> None:
    figure, axes = plt.subplots(
        len(found), 1, figsize=(7.2, 1.9 * len(found)), sharex=True, sharey=True
    )
    for axis, (name, run) in zip(axes, found.items(), strict=True):
        points = run["points"][: days * 96 : EVERY]
        at = [
            index * EVERY * run["point_seconds"] / 86400 for index in range(len(points))
        ]
        held, busy, _, queue = map(list, zip(*points, strict=True))
        axis.fill_between(at, busy, color=WORK, lw=0, label="GPUs at work")
        axis.fill_between(at, busy, held, color=HELD, lw=0, label="GPUs held idle")
        axis.plot(at, queue, color=QUEUE, lw=0.9, label="people who wait")
        axis.set_title(TITLES[name], fontsize=9, loc="left")
        axis.set_ylim(0, run["gpus"] * 1.5)
    axes[0].legend(ncols=3, frameon=False, fontsize=8, loc="upper right")
    axes[-1].set_xticks(
        range(days + 1), [f"day {day + 1}" for day in range(days)] + [""]
    )
    _save(figure, path)


def _waits(found: dict, path: Path) -> None:
    figure, axis = plt.subplots(figsize=(7.2, 1.9))
    for index, run in enumerate(found.values()):
        came = run["visits"] - run["gave_up"]
        seen = run["found"]
        parts = [
            (came, WORK, "could work"),
            (run["gave_up"], QUEUE, "gave up waiting"),
        ]
        left = 0
        for width, colour, label in parts:
            axis.barh(
                -index,
                width,
                left=left,
                color=colour,
                label=label if not index else None,
            )
            left += width
        axis.text(
            left,
            -index,
            f"  {run['lost']:,} lost, {seen['suspended']:,} resumed",
            va="center",
            fontsize=8,
        )
    axis.set_yticks([-i for i in range(len(found))], [TITLES[n] for n in found])
    axis.set_xlabel("stretches of work that people came for")
    axis.set_xlim(0, 1.3 * max(run["visits"] for run in found.values()))
    axis.legend(ncols=2, frameon=False, fontsize=8, loc="lower right")
    _save(figure, path)


def _save(figure: plt.Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

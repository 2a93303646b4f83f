"""Draws what ``simulation.py`` has written, for ``docs/explanation/policy.md``.

    python benchmarks/simulation_plots.py RUNS docs/images

RUNS is a folder with ``nothing.json``, ``kill.json``, ``idle.json``, ``pressure.json``.
Needs ``benchmarks/requirements.txt``. Small files: of several days one point an hour,
and text stays text.
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
WEEK = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
WORK, HELD, QUEUE = "#0072b2", "#e69f00", "#000000"
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


def _save(figure: plt.Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

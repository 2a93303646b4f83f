"""Inline SVG for the pages: an hour's line, a month's plot.

Pure. Colours are classes, never styles: the pages' policy allows no inline style.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import text as words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.controlplane.sessions.history import Line
    from jupyterhub_gpu_reclaim.controlplane.sessions.totals import Point, Totals

#: Height of a line's picture; its width is one unit a minute.
SPARK_HEIGHT = 20
#: Size of the plot's picture, in its own units.
WIDTH, HEIGHT = 600, 150
#: Most places of the plot that say their numbers when pointed at.
_MOST_MARKS = 100


@dataclass(frozen=True)
class Spark:
    """The GPU's use of the last hour."""

    path: str
    width: int
    height: int
    newest: str  #: "45 %"
    label: str  #: text alternative


@dataclass(frozen=True)
class PlotArea:
    """GPUs of one kind over time."""

    name: str  #: name of its class
    title: str
    path: str


@dataclass(frozen=True)
class Mark:
    """A moment that says its numbers when it is pointed at."""

    x: float
    width: float
    text: str


@dataclass(frozen=True)
class Plot:
    """The GPUs over time, stacked."""

    width: int
    height: int
    areas: list[PlotArea]
    across: list[str]  #: words along the time, evenly
    up: list[str]  #: numbers of GPUs from the top down, evenly
    marks: list[Mark]
    label: str


def spark(line: Line) -> Spark:
    """Draw a session's last hour; an unknown minute is a gap."""
    values = line.gpu_percent
    known = [value for value in values if value is not None]
    newest = next((v for v in reversed(values) if v is not None), 0.0)
    mean = sum(known) / len(known) if known else 0.0
    most = max(known, default=0.0)
    return Spark(
        path="".join(_bar(at, v) for at, v in enumerate(values) if v is not None),
        width=len(values),
        height=SPARK_HEIGHT,
        newest=f"{newest:.0f} %",
        label=(
            f"GPU use of the last hour: {mean:.0f} % on average, {most:.0f} % at most,"
            f" {newest:.0f} % last"
        ),
    )


def _bar(at: int, percent: float) -> str:
    """Draw a minute; one that did nothing is still a thin line."""
    high = max(1.0, min(percent, 100.0) / 100 * SPARK_HEIGHT)
    return f"M{at} {SPARK_HEIGHT}v-{high:.1f}h1v{high:.1f}z"


#: Kinds of GPUs that are stacked, from the ground up.
_KINDS: tuple[tuple[str, str, Callable[[Point], int]], ...] = (
    ("in-use", "in use", lambda point: point.gpus_in_use),
    ("idle", "idle", lambda point: point.gpus_idle),
    ("freed", "freed", lambda point: point.gpus_freed),
)


def plot(totals: Totals, hours: int) -> Plot | None:
    """Draw GPUs in use, idle and freed by hours; None without two moments."""
    points = totals.points
    if len(points) < 2:
        return None
    begin = totals.now.at - hours * 3600

    def x(at: float) -> float:
        return round(max(0.0, (at - begin) / (hours * 3600)) * WIDTH, 1)

    top = _round_up(max(sum(of(p) for _, _, of in _KINDS) for p in points))
    return Plot(
        width=WIDTH,
        height=HEIGHT,
        areas=_areas(_runs(points, totals.step), top, x),
        across=[_ago(hours * quarters / 4) for quarters in (4, 3, 2, 1, 0)],
        up=[f"{top:g}", f"{top / 2:g}", "0"],
        marks=_marks(points, totals, x),
        label=_label(points, hours),
    )


def _runs(points: Sequence[Point], step: float) -> list[list[Point]]:
    """Split the points where the service was away."""
    runs = [[points[0]]]
    for before, point in pairwise(points):
        if point.at - before.at > 1.5 * step:
            runs.append([])
        runs[-1].append(point)
    return runs


def _areas(
    runs: list[list[Point]], top: float, x: Callable[[float], float]
) -> list[PlotArea]:
    def y(count: float) -> float:
        return round(HEIGHT * (1 - count / top), 1)

    areas = []
    for number, (name, title, _) in enumerate(_KINDS):
        path = ""
        for run in runs:
            upper = [(x(p.at), y(_stacked(p, number + 1))) for p in run]
            lower = [(x(p.at), y(_stacked(p, number))) for p in reversed(run)]
            path += "M" + "L".join(f"{a:g} {b:g}" for a, b in [*upper, *lower]) + "z"
        areas.append(PlotArea(name, title, path))
    return areas


def _stacked(point: Point, kinds: int) -> int:
    return sum(of(point) for _, _, of in _KINDS[:kinds])


def _marks(
    points: Sequence[Point], totals: Totals, x: Callable[[float], float]
) -> list[Mark]:
    every = -(-len(points) // _MOST_MARKS)
    marks = []
    for point in points[::every]:
        ago = words.duration(totals.now.at - point.at)
        counts = ", ".join(f"{of(point)} {title}" for _, title, of in _KINDS)
        width = x(point.at + every * totals.step) - x(point.at)
        marks.append(Mark(x(point.at), round(width, 1), f"{ago} ago: {counts} GPUs"))
    return marks


def _label(points: Sequence[Point], hours: int) -> str:
    parts = []
    for _, title, of in _KINDS:
        counts = [of(point) for point in points]
        mean = sum(counts) / len(counts)
        parts.append(f"{title} {mean:.0f} on average, {max(counts)} at most")
    return f"GPUs over the last {_span(hours)}: {'; '.join(parts)}"


def _round_up(count: int) -> int:
    """The next number with a round half: 2, 4, 10, 20, 40, 100, and so on."""
    scale = 1
    while True:
        for first in (2, 4, 10):
            if first * scale >= count:
                return first * scale
        scale *= 10


def _ago(hours: float) -> str:
    return f"{_span(hours)} ago" if hours else "now"


def _span(hours: float) -> str:
    """Write hours as hours up to two days, then as days: "45 min", "24 h", "7 d"."""
    if hours < 1:
        return f"{60 * hours:g} min"
    return f"{hours:g} h" if hours <= 48 else f"{hours / 24:g} d"

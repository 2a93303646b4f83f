"""A week of many sessions on few GPUs: what saving idle ones does, and what it costs.

    .venv/bin/python -m benchmarks.simulation --people 10000 --gpus 1000 --days 7 \
        --strategy pressure --out week-pressure.json
    .venv/bin/python -m benchmarks.simulation --scale 1000 2000 5000 10000

Simulated people (``simulated_people.py``) in simulated time (``simulation/loop.py``)
meet one strategy: ``nothing``, ``kill`` (idle-culler's rule, ``--hours``), ``idle`` or
``pressure``. The last two are the real controller, policy, work queue and SQLite
journal over a simulated node and Hub (``simulated_node.py``). ``simulation_plots.py``
draws the files. With ``--scale`` it measures what beats of the service cost instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.simulated_people import DAY, Habits, Seen, person
from benchmarks.simulated_strategies import BEAT, Ours, Plain, wrong
from simulation.loop import run

POINT = 900.0  #: seconds between two points of the plots


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=20)
    parser.add_argument("--days", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=1.0, help="of kill")
    parser.add_argument(
        "--strategy", choices=["nothing", "kill", "idle", "pressure"], default="idle"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--scale", type=int, nargs="+", metavar="SESSIONS")
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    if options.scale:
        from benchmarks import simulation_scale  # noqa: PLC0415

        simulation_scale.table(options.scale)
        return 0
    found = simulate(options)
    text = json.dumps(found, indent=1)
    if options.out:
        options.out.write_text(text)
    points = found.pop("points")
    print(json.dumps(found, indent=1), f"{len(points)} points")
    return 0


def simulate(options: Any) -> dict[str, Any]:
    """One run of one strategy."""
    begun, cpu = time.monotonic(), time.process_time()
    memory = "/dev/shm"  # a disk's syncs would be waited for in real time
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        found = run(_week(options, f"sqlite:///{folder}/journal.sqlite"))
    return {
        **_what(options),
        **found,
        "run_seconds": round(time.monotonic() - begun, 1),
        "run_cpu_seconds": round(time.process_time() - cpu, 1),
        "run_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def _world(options: Any, journal: str) -> Ours | Plain:
    match options.strategy:
        case "nothing":
            return Plain(options.gpus)
        case "kill":
            return Plain(options.gpus, options.hours * 3600)
        case "idle":
            return Ours(options.gpus, journal)
    return Ours(options.gpus, journal, under_pressure=BEAT)


async def _week(options: Any, journal: str) -> dict[str, Any]:
    world, seen = _world(options, journal), Seen()
    points: list[list[int]] = []
    await world.start()
    people = [
        asyncio.create_task(
            person(world, number, Habits(), options.seed, options.days, seen)
        )
        for number in range(options.people)
    ]
    found: dict[str, Any] = {}
    for day in range(options.days):
        await _day(world, points)
        found = {"days_done": day + 1, **_met(seen), **_sums(world, points)}
        if options.out:
            options.out.write_text(json.dumps({**_what(options), **found}, indent=1))
        used = time.process_time()
        print(f"{options.strategy}: day {day + 1}, {used:.0f} s CPU", file=sys.stderr)
    for task in people:
        task.cancel()
    told = await asyncio.gather(*people, return_exceptions=True)
    faults = [e for e in told if isinstance(e, Exception)]
    if faults:
        raise faults[0]
    await world.end()
    return found


async def _day(world: Ours | Plain, points: list[list[int]]) -> None:
    """Let a day pass, and count at every point."""
    for _ in range(int(DAY / POINT)):
        await asyncio.sleep(POINT)
        await world.beat()
        places = list(world.places())
        busy = sum(place.busy_since is not None for place in places)
        points.append([len(places), busy, world.held(), len(world.gpus.queue)])


def _sums(world: Ours | Plain, points: list[list[int]]) -> dict[str, Any]:
    hours = POINT / 3600
    return {
        "lost": world.lost,
        "suspends": world.suspends,
        "held_gpu_hours": round(hours * sum(point[0] for point in points)),
        "worked_gpu_hours": round(hours * sum(point[1] for point in points)),
        "point_seconds": POINT,
        "points": points,
    }


def _what(options: Any) -> dict[str, Any]:
    names = ("strategy", "people", "gpus", "days", "seed")
    return {name: getattr(options, name) for name in names}


def _met(seen: Seen) -> dict[str, Any]:
    everybody = seen.waits("running", "suspended", "new", "lost")
    back = seen.waits("suspended")
    new = seen.waits("new", "lost")
    return {
        "visits": len(seen.meetings),
        "gave_up": sum(not meeting.came for meeting in seen.meetings),
        "found": {
            word: sum(meeting.found == word for meeting in seen.meetings)
            for word in ("running", "suspended", "new", "lost")
        },
        "wait_all_seconds": _spread(everybody),
        "wait_resumed_seconds": _spread(back),
        "wait_started_seconds": _spread(new),
        "wrong_suspends": wrong(seen.meetings),
    }


def _spread(waits: list[float]) -> dict[str, float]:
    if not waits:
        return {}
    at = {"median": 0.5, "p95": 0.95, "p99": 0.99}
    spread = {
        name: round(waits[int(share * (len(waits) - 1))], 1)
        for name, share in at.items()
    }
    return {**spread, "max": round(waits[-1], 1)}


if __name__ == "__main__":
    sys.exit(main())

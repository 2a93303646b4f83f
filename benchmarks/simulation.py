"""A week of many sessions on few GPUs: what saving idle ones does, and what it costs.

    .venv/bin/python -m benchmarks.simulation --people 10000 --gpus 1000 --days 7 \
        --strategy pressure --out week-pressure.json
    .venv/bin/python -m benchmarks.simulation --scale 1000 2000 5000 10000

Simulated people (``simulated_people.py``) in simulated time (``simulation/loop.py``)
meet one strategy: ``nothing``, ``kill`` (idle-culler's rule, ``--hours``), or the real
controller, policy, work queue and SQLite journal over a simulated node and Hub
(``simulated_node.py``): ``idle``, ``pressure`` (sooner while somebody waits), ``naps``
(and a suspend after an hour), ``naps-idle`` (and one after 15 min), ``naps-pressure``.
With ``--shared`` people run cells, and share cards whose memory has an end;
``simulation_seats.py`` compares that. With ``--spot`` nodes are taken away
(``simulated_spot.py``); ``simulation_spot.py`` compares that. ``simulation_plots.py``
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.simulated_gpus import GB
from benchmarks.simulated_people import (
    DAY,
    HOUR,
    Habits,
    Meeting,
    Seen,
    person,
)
from benchmarks.simulated_spot import Spot, SpotOurs, SpotPlain
from benchmarks.simulated_strategies import BEAT, Machine, Ours, Plain, Rules, wrong
from simulation.loop import run

POINT = 900.0  #: seconds between two points of the plots
#: What a cell computes, seconds: median, sigma.
CELL = (40.0, 1.2)
#: Who is woken so soon after a nap for another one has had little of either.
THRASH = 600.0

RULES = {
    "idle": Rules(),
    "pressure": Rules(under_pressure=BEAT),
    "naps": Rules(nap_after=180.0, idle_after=HOUR),
    "naps-idle": Rules(nap_after=180.0),
    "naps-pressure": Rules(nap_after=180.0, idle_after=HOUR, under_pressure=BEAT),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=20)
    parser.add_argument("--days", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=1.0, help="of kill")
    parser.add_argument(
        "--strategy", choices=["nothing", "kill", *RULES], default="idle"
    )
    parser.add_argument("--beat", type=float, default=BEAT, help="of the service, s")
    parser.add_argument("--room-after", type=float, default=60.0, help="of naps, s")
    parser.add_argument(
        "--overlooked", type=float, default=0.0, help="share of work that looks idle"
    )
    parser.add_argument(
        "--mistaken", type=float, default=0.0, help="share of idleness that does not"
    )
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--seats", type=int, default=1, help="of each card")
    parser.add_argument("--card-gb", type=float, default=80.0, help="with --shared")
    parser.add_argument("--host-gb", type=float, default=512.0, help="with --shared")
    parser.add_argument("--vram-gb", type=float, default=12.0, help="people's median")
    parser.add_argument(
        "--spot", type=int, default=0, help="nodes, of which one is taken each day"
    )
    parser.add_argument("--drain", action="store_true", help="at notices, with --spot")
    parser.add_argument("--save-every", type=float, default=0.0, help="0: never, s")
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
    machine = Machine(gpus=options.gpus, seats=options.seats)
    if options.shared:
        memory, host = GB * options.card_gb, GB * options.host_gb
        machine = replace(machine, memory=memory, host=host)
    spot = Spot(options.spot, options.seed, options.days, drain=options.drain)
    match options.strategy:
        case "nothing" if options.spot:
            return SpotPlain(machine, spot)
        case "nothing":
            return Plain(machine)
        case "kill":
            return Plain(machine, options.hours * 3600)
    rules = RULES[options.strategy]
    rules = replace(
        rules,
        beat=options.beat,
        room_after=options.room_after,
        overlooked=options.overlooked,
        mistaken=options.mistaken,
        save_every=options.save_every,
    )
    if options.spot:
        return SpotOurs(spot, machine, journal, rules)
    return Ours(machine, journal, rules)


def _habits(options: Any) -> Habits:
    habits = Habits()
    vram = GB * options.vram_gb, habits.vram[1]
    cell = CELL if options.shared else None
    return replace(habits, vram=vram, cell=cell)


async def _week(options: Any, journal: str) -> dict[str, Any]:
    seen, habits = Seen(), _habits(options)
    world = _world(options, journal)
    points: list[list[int]] = []
    await world.start()
    people = [
        asyncio.create_task(
            person(world, number, habits, options.seed, options.days, seen)
        )
        for number in range(options.people)
    ]
    found: dict[str, Any] = {}
    for day in range(options.days):
        await _day(world, points)
        found = {"days_done": day + 1, **_met(seen), **_sums(world, points)}
        found |= _shared(world, seen)
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
    if isinstance(world, SpotPlain | SpotOurs):
        found |= world.told()
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
        "cut_off": world.cut_off,
        "held_gpu_hours": round(hours * sum(point[0] for point in points)),
        "worked_gpu_hours": round(hours * sum(point[1] for point in points)),
        "point_seconds": POINT,
        "points": points,
    }


def _what(options: Any) -> dict[str, Any]:
    names = ("strategy", "people", "gpus", "days", "seed", "seats", "vram_gb")
    return {name: getattr(options, name) for name in names}


def _met(seen: Seen) -> dict[str, Any]:
    everybody = seen.waits("running", "napping", "suspended", "new", "lost")
    back = seen.waits("suspended")
    new = seen.waits("new", "lost")
    return {
        "visits": len(seen.meetings),  # stretches of work, or cells
        "gave_up": sum(not meeting.came for meeting in seen.meetings),
        "found": {
            word: sum(meeting.found == word for meeting in seen.meetings)
            for word in ("running", "napping", "suspended", "new", "lost")
        },
        "wait_all_seconds": _spread(everybody),
        "wait_woken_seconds": _spread(seen.waits("napping")),
        "wait_resumed_seconds": _spread(back),
        "wait_started_seconds": _spread(new),
        "wrong_suspends": wrong(seen.meetings),
    }


def _shared(world: Ours | Plain, seen: Seen) -> dict[str, Any]:
    """What cards were used for, and what people paid."""
    for card in world.gpus.cards:
        card.note()
    cards = [card.hours for card in world.gpus.cards]
    asked = max(1, len(seen.meetings))
    waited = sum(each.waited for each in seen.meetings if each.came)
    return {
        "card_hours": {
            "seated": round(sum(each.seated for each in cards) / HOUR, 2),
            "worked": round(sum(each.worked for each in cards) / HOUR, 2),
            "memory_held": round(sum(each.held for each in cards) / HOUR, 2),
            "memory_idle": round(sum(each.held_idle for each in cards) / HOUR, 2),
        },
        "people_visits": seen.visits,
        "people_served": seen.served,
        "people_given_up": seen.given_up,
        "hours_of_work": round(seen.worked / HOUR, 2),
        "hours_computed": round(seen.computed / HOUR, 2),
        "hours_shared": round(seen.shared / HOUR, 2),
        "hours_waited": round(waited / HOUR, 2),  # and got it
        "cells_over_3_s": sum(each.waited > 3.0 for each in seen.meetings) / asked,
        "cells_over_30_s": sum(each.waited > 30.0 for each in seen.meetings) / asked,
        "naps": world.naps,
        "naps_failed": world.naps_failed,
        "woken": sum(each.found == "napping" for each in seen.meetings),
        "woken_room": sum(each.gave_room for each in seen.meetings),
        "thrashed": sum(_is_thrash(each) for each in seen.meetings),
        "wakes_unserved": world.wakes_unserved,
    }


def _is_thrash(meeting: Meeting) -> bool:
    return meeting.gave_room and meeting.after < THRASH


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

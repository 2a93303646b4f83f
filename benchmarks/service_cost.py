"""What the service costs with many sessions at rest and at work: CPU and memory.

    .venv/bin/python -m benchmarks.service_cost 1000 2000 5000 10000

Each number of sessions is a program of its own: a quarter of them run and work, the
others are suspended; nobody comes and nobody goes. The real controller beats as it does
by default (samples and ticks every 10 s) for some minutes of simulated time, with its
journal in memory. What the node takes for its own answers is measured and taken off the
time; its memory is not.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.still_node import StillAgent, StillHub
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.controlplane.controller import Controller
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.settings import Settings
from jupyterhub_gpu_reclaim.policy.decide import Decider
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.pressure import PressurePolicy, choose_to_go
from jupyterhub_gpu_reclaim.sampling.window import Window
from simulation.loop import LoopClock, run

MINUTES = 5
RUNNING = 4  #: one of so many sessions runs


class TimedAgent(StillAgent):
    """Says how long its own answers took."""

    own = 0.0

    async def samples(self, key: SessionKey | None = None) -> list:
        begun = time.process_time()
        found = await super().samples(key)
        self.own += time.process_time() - begun
        return found

    async def trees(self, key: SessionKey | None = None) -> list:
        begun = time.process_time()
        found = await super().trees(key)
        self.own += time.process_time() - begun
        return found


async def _measure(size: int, journal: Journal) -> tuple[float, float, float]:
    clock = LoopClock()
    agent = TimedAgent(clock)
    before = _resident()
    for number in range(size):
        key = SessionKey(f"user{number:05}")
        (agent.suspended if number % RUNNING else agent.running)(key, journal)
    idle = IdlePolicy()
    pressure = PressurePolicy(idle, pressure_idle_after=300.0)
    decide = Decider(Guards().denials, [idle, pressure])
    controller = Controller(
        journal=journal,
        agent=agent,
        hub=StillHub(agent),
        decide=decide,
        choose=partial(choose_to_go, decide),
        window=lambda: Window(span=idle.idle_after, interval=10.0),
        clock=clock,
        settings=Settings(),
    )
    await controller.start()
    await asyncio.sleep(60.0)  # windows and views are there
    begun, own = time.process_time(), agent.own
    longest = 0.0
    for _ in range(int(MINUTES * 6)):
        beat = time.process_time()
        await asyncio.sleep(10.0)
        longest = max(longest, time.process_time() - beat)
    spent = time.process_time() - begun - (agent.own - own)
    grown = _resident() - before
    await controller.stop()
    return 1000 * spent / (MINUTES * 60), grown / 2**20, 1000 * longest


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> None:
    """Measure each size in a program of its own, and print a table."""
    print("sessions  CPU ms/s  ms/s per 1,000  MiB  MiB per 1,000  longest beat ms")
    for size in map(int, sys.argv[1:]):
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.service_cost", "--one", str(size)],
            check=True,
            capture_output=True,
            text=True,
        )
        cpu, mib, longest = map(float, ran.stdout.split())
        per = size / 1000
        print(
            f"{size:8} {cpu:9.1f} {cpu / per:15.2f} {mib:4.0f} {mib / per:14.1f}"
            f" {longest:16.0f}"
        )


def _one(size: int) -> None:
    """One size; three numbers for the table."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        journal = Journal(f"sqlite:///{folder}/journal.sqlite")
        cpu, mib, longest = run(_measure(size, journal))
        journal.close()
    print(cpu, mib, longest)


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        _one(int(sys.argv[2]))
    else:
        main()

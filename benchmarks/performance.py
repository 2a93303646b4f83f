"""What saving and bringing back takes beside its peers: docs/reference/performance.md.

    sudo make bench                  (on two cores without a card: ten minutes)
    sudo .venv/bin/python -m benchmarks.performance --gb 1 4 --gpu-gb 16 --page PAGE

Each row stands beside a peer of the same run, in turns with it; figures are medians.
``--page`` writes the table into the page, in place of the one of the same kind of
machine: with a card or without. The browser is left out where there is no
/usr/bin/chromium. Details: session.py, gpu.py, notebook_return.py.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu
import marked_page
import pynvml
import session

from jupyterhub_gpu_reclaim.checkpoint.criu import binary
from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver
from jupyterhub_gpu_reclaim.store.workers.pool import Pool

HEAD = "| what | ours | peer | ours / peer | goal |\n|---|--:|--:|--:|--:|"
#: As much of stock CRIU's time as a session may take, by cores: saved, brought back.
#: The goals are given as speeds: 0.7 as fast is 1.43 of its time.
FEW_CORES = {1: (1.43, 1.0), 4: (1.43, 1.0)}
MANY_CORES = {1: (1.11, 0.5), 4: (0.67, 0.25)}


class Row(NamedTuple):
    """A figure beside its peer's, both in seconds."""

    what: str
    ours: float
    peer: float
    goal: float | None = None

    def __str__(self) -> str:
        """The row of the page's table."""
        goal = "" if self.goal is None else f"≤ {self.goal:.2f}"
        return (
            f"| {self.what} | {self.ours:.2f} s | {self.peer:.2f} s"
            f" | {self.ours / self.peer:.2f} | {goal} |"
        )


def sessions(sizes: list[int], runs: int, pool: Pool, criu: Path) -> list[Row]:
    """A session without a card: stock CRIU into files, and the agent, on tmpfs."""
    rows, meter = [], session.Meter()
    methods = session.methods_of(criu, pool)
    pair = {name: methods[name] for name in ("stock", "agent")}
    goals = MANY_CORES if (os.cpu_count() or 1) >= 8 else FEW_CORES
    for gb in sizes:
        found = session.measure(pair, meter, session.of_size(gb), "tmpfs", runs)
        stock, ours = found["stock"], found["agent"]
        save, back = goals.get(gb, (None, None))
        what = f"{gb} GB of host memory"
        median = statistics.median
        rows += [
            Row(f"{what}, saved", median(ours.save), median(stock.save), save),
            Row(f"{what}, brought back", median(ours.back), median(stock.back), back),
        ]
        print(f"the agent's last run, {ours.steps}", flush=True)
    meter.close()
    return rows


def cards(sizes: list[int], runs: int, pool: Pool, criu: Path) -> list[Row]:
    """A session with a card: the driver's own calls with stock CRIU, and the agent."""
    driver = Driver()
    try:
        if not driver.present():
            return []
        bench = gpu.Bench(criu, driver, pool, session.WHERE["tmpfs"])
        rows = []
        for gib in sizes:
            found = bench.medians(
                gib, "random", ("bare", "agent"), runs=runs, again=False
            )
            ours, bare = found["agent"], found["bare"]
            what = f"{gib} GiB on a card"
            rows += [
                Row(f"{what}, until it is free", ours.free, bare.free, 1.0),
                Row(f"{what}, until it is saved", ours.durable, bare.durable, 0.6),
                Row(f"{what}, until it answers", ours.answer, bare.answer, 0.33),
            ]
        return rows
    finally:
        driver.close()


def visits(rounds: int) -> list[Row]:
    """A notebook opened in a browser, its session suspended, or running."""
    from benchmarks import notebook_return  # noqa: PLC0415 - the browser is optional
    from tests.support import chromium  # noqa: PLC0415

    if not Path(chromium.PATH).exists():
        return []
    found = notebook_return.measure(None, rounds)
    median = {
        kind: statistics.median(one.whole for one in opened)
        for kind, opened in found.items()
    }
    what = "from the click to the notebook, beside a"
    return [
        Row(f"{what} session that runs", median["resumed"], median["running"]),
        Row(f"{what} new server", median["resumed"], median["cold"]),
    ]


def machine() -> str:
    """What this was measured on, in a sentence."""
    told = [f"{os.cpu_count()} cores", f"Linux {platform.release().split('-')[0]}"]
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        told += [card, f"driver {pynvml.nvmlSystemGetDriverVersion()}"]
    load = os.getloadavg()[0]
    day = datetime.datetime.now(tz=datetime.UTC).date()
    return f"{day} · {', '.join(told)} · load {load:.1f} as it began"


def main() -> None:
    """Measure, print the table, and write it into the page."""
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--gb", type=int, nargs="*", default=[1])
    words.add_argument("--gpu-gb", type=int, nargs="*", default=[16])
    words.add_argument("--runs", type=int, default=3)
    words.add_argument(
        "--rounds", type=int, default=5, help="notebooks opened; 0: none"
    )
    words.add_argument("--criu", type=Path, default=session.ROOT / ".cache" / "criu")
    words.add_argument("--page", type=Path)
    args = words.parse_args()
    binary.locate(args.criu)
    where, pool = machine(), Pool()
    try:
        on_cards = cards(args.gpu_gb, args.runs, pool, args.criu)
        rows = on_cards + sessions(args.gb, args.runs, pool, args.criu)
    finally:
        pool.close()
    rows += visits(args.rounds) if args.rounds else []
    table = "\n".join((f"{where}, medians of {args.runs}\n", HEAD, *map(str, rows)))
    print(table)
    if args.page:
        kind = "card" if on_cards else "cores"
        marked_page.put(args.page, f"benchmarks/performance.py {kind}", table)


if __name__ == "__main__":
    main()

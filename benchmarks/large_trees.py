"""Sessions of many threads, processes or mappings: how long a save point stands still.

    sudo .venv/bin/python benchmarks/large_trees.py --runs 3

Each is saved once while it goes on, then suspended and brought back, by a real agent on
tmpfs; after it, each program is asked whether all of it is there. "stock" is
``criu dump`` and ``criu restore`` of the same tree with files. Medians, in seconds;
"stood still" is what the agent tells of a save point, "looks before" the preflight,
while the session runs.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import session

from jupyterhub_gpu_reclaim.checkpoint.criu import binary

if TYPE_CHECKING:
    from agent import Order

#: What each is made of; ``digest`` tells what is there.
PROGRAMS = {
    "3,000 threads": """
import threading
threading.stack_size(64 << 10)
for _ in range(3000):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
digest = lambda: str(len(os.listdir("/proc/self/task")))
""",
    "400 processes": """
for _ in range(400):
    if not os.fork():
        signal.pause()
me = str(os.getpid())
digest = lambda: str(len(open(f"/proc/self/task/{me}/children").read().split()))
""",
    "60,000 mappings": """
import mmap
pages = [mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                   mmap.PROT_READ | (mmap.PROT_WRITE if n % 2 else 0))
         for n in range(60000)]
for page in pages[1::2]:
    page[0] = 1
digest = lambda: str(len(open("/proc/self/maps").readlines()) // 1000)
""",
}


class SavedBefore(session.ByAgent):
    """Saved once while it goes on, and then suspended; ``points`` gets the order."""

    def __init__(self, criu: Path, folder: Path, points: list[Order]) -> None:
        super().__init__(criu, folder)
        self._points = points

    def see(self) -> None:
        """Save it as well."""
        super().see()
        self._points.append(
            self._agent.order(
                "save", "checkpoint", checkpoint="benchmark-point", generation=1
            )
        )


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--runs", type=int, default=3)
    words.add_argument("--only", choices=PROGRAMS)
    words.add_argument("--criu", type=Path, default=session.ROOT / ".cache" / "criu")
    args = words.parse_args()
    criu, meter, points = binary.locate(args.criu), session.Meter(), []
    methods = {
        "stock": lambda folder: session.Stock(criu, folder),
        "agent": lambda folder: SavedBefore(args.criu, folder, points),
    }
    print("| a session of | looks before | stood still", end="")
    print(" | suspended | brought back | stock: saved | back |")
    print("|---" + "|--:" * 6 + "|")
    for name in [args.only] if args.only else PROGRAMS:
        points.clear()
        found = session.measure(methods, meter, [PROGRAMS[name]], "tmpfs", args.runs)
        stock, ours = found["stock"], found["agent"]
        told = [
            [point.done["preflight"] for point in points],
            [point.last["checkpoint"]["frozen_seconds"] for point in points],
            *(ours.save, ours.back, stock.save, stock.back),
        ]
        cells = (f"{statistics.median(each):.2f} s" for each in told)
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    meter.close()


if __name__ == "__main__":
    main()

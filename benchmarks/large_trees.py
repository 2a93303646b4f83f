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
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import session

from jupyterhub_gpu_reclaim.checkpoint.criu import binary

WAIT = """
answer = pathlib.Path(sys.argv[1]) / "answer"
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
def tell():
    answer.with_suffix(".new").write_text(count())
    answer.with_suffix(".new").rename(answer)
tell()
while True:
    signal.sigwait({signal.SIGUSR1})
    tell()
"""
#: What each is made of; ``count`` tells what is there.
PROGRAMS = {
    "3,000 threads": """
import os, pathlib, signal, sys, threading
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
threading.stack_size(64 << 10)
for _ in range(3000):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
count = lambda: str(len(os.listdir("/proc/self/task")))
""",
    "400 processes": """
import os, pathlib, signal, sys
for _ in range(400):
    if not os.fork():
        signal.pause()
me = str(os.getpid())
count = lambda: str(len(open(f"/proc/self/task/{me}/children").read().split()))
""",
    "60,000 mappings": """
import mmap, os, pathlib, signal, sys
pages = [mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                   mmap.PROT_READ | (mmap.PROT_WRITE if n % 2 else 0))
         for n in range(60000)]
for page in pages[1::2]:
    page[0] = 1
count = lambda: str(len(open("/proc/self/maps").readlines()) // 1000)
""",
}


def cycle(program: str, method: session.Method) -> dict[str, float]:
    """Start it, save it, bring it back, ask it; seconds."""
    found: dict[str, float] = {}
    with ExitStack() as stack:
        talk = Path(tempfile.mkdtemp(dir="/tmp"))
        stack.callback(shutil.rmtree, talk)
        place = session.Place.make(
            "start", sys.executable, "-c", program + WAIT, str(talk)
        )
        stack.callback(place.end)
        session.wait_for((talk / "answer").exists)
        before = (talk / "answer").read_text()
        method.see()
        if isinstance(method, session.ByAgent):
            saved = method.save_point()
            found["looks before"] = saved.done["preflight"]
            found["stood still"] = saved.last["checkpoint"]["frozen_seconds"]
        begun = time.monotonic()
        method.save(place)
        found["suspended"] = time.monotonic() - begun
        place.end()
        (talk / "answer").unlink()
        holding = session.Place.make("hold")
        stack.callback(holding.end)
        begun = time.monotonic()
        method.bring_back(holding)
        found["brought back"] = time.monotonic() - begun
        holding.ask()
        session.wait_for((talk / "answer").exists)
        if (talk / "answer").read_text() != before:
            sys.exit("it came back changed")
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--runs", type=int, default=3)
    words.add_argument("--only", choices=PROGRAMS)
    words.add_argument("--criu", type=Path, default=session.ROOT / ".cache" / "criu")
    args = words.parse_args()
    criu = binary.locate(args.criu)
    columns = ("looks before", "stood still", "suspended", "brought back")
    print("| a session of | " + " | ".join(columns) + " | stock: saved | back |")
    print("|---" + "|--:" * (len(columns) + 2) + "|")
    for name in [args.only] if args.only else PROGRAMS:
        ours, stock = defaultdict(list), defaultdict(list)
        for _ in range(args.runs):
            for found, make in (
                (stock, lambda folder: session.Stock(criu, folder)),
                (ours, lambda folder: session.ByAgent(args.criu, folder)),
            ):
                folder = Path(tempfile.mkdtemp(dir=session.WHERE["tmpfs"]))
                method = make(folder)
                try:
                    for what, seconds in cycle(PROGRAMS[name], method).items():
                        found[what].append(seconds)
                finally:
                    method.close()
                    shutil.rmtree(folder)
        told = [ours[column] for column in columns]
        told += [stock["suspended"], stock["brought back"]]
        cells = (f"{statistics.median(each):.2f} s" for each in told)
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

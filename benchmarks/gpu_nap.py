"""A nap and a wake by a message, beside the driver's bare calls in the same process.

    sudo .venv/bin/python benchmarks/gpu_nap.py --gb 1 4 16 --runs 5

A PyTorch program in a session waits on a connection, as a kernel does; for each line it
adds up some of its GPU memory and answers. "out" and "back" are the driver's own lock
and checkpoint, restore and unlock. "nap" is from the order to the agent's answer,
"wake" from the line that is sent until its sum is there, less what that takes awake.
The goal of a wake is 50 ms and 1.1 times the bare way back.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import session as tree
from agent import Agent

from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver

LIMIT = 300.0
GOAL_SECONDS, GOAL_RATIO = 0.05, 1.1
PROGRAM = """
import pathlib, socket, sys, torch
torch.set_num_threads(1)
torch.manual_seed(1)
folder, gib = pathlib.Path(sys.argv[1]), float(sys.argv[2])
data = [torch.randn(1 << 26, device="cuda") for _ in range(int(gib * 4))]
def told():
    return repr([float(one[::65536].sum()) for one in data[:4]])
told()
listener = socket.create_server(("127.0.0.1", 0))
(folder / "new").write_text(str(listener.getsockname()[1]))
(folder / "new").rename(folder / "port")
client, _ = listener.accept()
with client.makefile("rw") as lines:
    for line in lines:
        lines.write(told() + "\\n"); lines.flush()
"""


class Program:
    """The session, and a connection to what runs in it."""

    def __init__(self, stack: ExitStack, gib: float) -> None:
        folder = Path(tempfile.mkdtemp(dir="/tmp"))
        stack.callback(shutil.rmtree, folder)
        command = [sys.executable, "-c", PROGRAM, str(folder), str(gib)]
        self.place = tree.Place.make("start", *command)
        stack.callback(self.place.end)
        tree.wait_for((folder / "port").exists, LIMIT)
        address = ("127.0.0.1", int((folder / "port").read_text()))
        client = stack.enter_context(socket.create_connection(address, LIMIT))
        self._lines = stack.enter_context(client.makefile("rw"))
        self.told = ""

    def ask(self) -> float:
        """Seconds until it has answered, which must be the same each time."""
        begun = time.monotonic()
        self._lines.write("?\n")
        self._lines.flush()
        told = self._lines.readline()
        seconds = time.monotonic() - begun
        if told != (self.told or told):
            sys.exit("its tensors have changed")
        self.told = told
        return seconds


def bare(driver: Driver, place: tree.Place) -> tuple[float, float]:
    """The driver's calls alone: seconds out, and back."""
    one = place.program.pid
    begun = time.monotonic()
    driver.lock(one, seconds=LIMIT)
    driver.checkpoint(one, seconds=LIMIT)
    out = time.monotonic() - begun
    begun = time.monotonic()
    driver.restore(one, seconds=LIMIT)
    driver.unlock(one)
    return out, time.monotonic() - begun


def measure(driver: Driver, criu: Path, gib: float, runs: int) -> None:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(dir="/tmp"))
        stack.callback(shutil.rmtree, folder)
        program = Program(stack, gib)
        agent = Agent(folder, criu)
        stack.callback(agent.close)
        rows = []
        for _ in range(runs):
            out, back = bare(driver, program.place)
            awake = program.ask()
            nap = agent.order("nap", "tree").seconds
            wake = program.ask() - awake
            rows.append((out, nap, back, wake))
            agent.order(
                "wake", "tree"
            )  # done already: it waits until that is written down
        out, nap, back, wake = (
            statistics.median(column) for column in zip(*rows, strict=True)
        )
        goal = GOAL_SECONDS + GOAL_RATIO * back
        print(
            f"{gib:>4g} {out:>7.2f}s {nap:>7.2f}s {nap / out:>6.2f}"
            f" {back:>7.3f}s {wake:>7.3f}s {wake / back:>6.2f}"
            f" {'yes' if wake <= goal else 'no':>5}",
            flush=True,
        )


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--gb", type=float, nargs="*", default=[1, 4])
    words.add_argument("--runs", type=int, default=5)
    words.add_argument("--criu", type=Path, default=tree.ROOT / ".cache" / "criu")
    args = words.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root: the agent enters namespaces")
    driver = Driver()
    if not driver.present():
        sys.exit("there is no GPU here, or its driver is older than 570")
    print(
        f"{'GiB':>4} {'out':>8} {'nap':>8} {'ratio':>6}"
        f" {'back':>8} {'wake':>8} {'ratio':>6} {'goal':>5}"
        f"  (medians of {args.runs})"
    )
    try:
        for gib in args.gb:
            measure(driver, args.criu, gib, args.runs)
    finally:
        driver.close()


if __name__ == "__main__":
    main()

"""``make soak``: sessions are suspended and resumed for hours; prints a table."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from demo import processes
from demo.stack import Stack
from soak import ledger, table
from soak.run import STACK, Options, Soak
from soak.zoo import ANIMALS, GPU_ANIMALS, Animal

ROOT = Path(__file__).parents[1]
#: Programs find the driver by it.
_FOR_A_CARD = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}


def main() -> int:
    """Run, or add runs up; returns the exit status."""
    args = _arguments()
    if args.report:
        print(table.markdown(ledger.read(args.report)))
        return 0
    if os.geteuid() != 0:
        print("Run this as root: sessions are suspended by CRIU.", file=sys.stderr)
        return 1
    animals = tuple(animal for animal in _animals(args) if animal.here())
    folder = args.folder.resolve()
    if processes.claim(folder) is None:
        print(f"Another run has {folder}: end that first.", file=sys.stderr)
        return 1
    options = Options(
        folder,
        animals,
        args.cycles,
        args.minutes * 60,
        args.seed,
        args.users,
        args.kills,
        args.patience,
        args.chain,
        args.again,
        args.saves,
    )
    found = run(options, args)
    with args.results.open("a") as results:
        results.write(found.line() + "\n")
    print(table.text([ledger.read_line(found.line())]))
    return 1 if found.failures else 0


def run(options: Options, args: argparse.Namespace) -> ledger.Ledger:
    """Start a stack, soak it, and end it."""
    found = ledger.Ledger(_about(args))
    settings: dict[str, Any] = {**STACK, "http_timeout": 30 * options.patience}
    if args.gpu:
        settings |= {"default_url": "", "environment": _FOR_A_CARD}
    stack = Stack(options.folder, **settings)
    stack.patience = options.patience
    with stack:
        soak = Soak(options, stack, found)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: soak.stop())
        soak.run()
    return found


def _arguments() -> argparse.Namespace:
    words = argparse.ArgumentParser(prog="soak", description=__doc__)
    words.add_argument("--cycles", type=int, default=200, help="of all users together")
    words.add_argument("--minutes", type=float, default=60, help="at most")
    words.add_argument(
        "--seed", type=int, default=int(time.time()) % 100_000, help="default: drawn"
    )
    words.add_argument("--users", type=int, default=3, help="at the same time")
    words.add_argument("--kills", type=float, default=0.1, help="for each cycle")
    words.add_argument(
        "--patience", type=float, default=1, help="times longer, beside other work"
    )
    words.add_argument("--chain", type=int, default=0, help="cycles of one session")
    words.add_argument(
        "--again", type=float, default=0,
        help="second returns from one checkpoint, for each cycle",
    )  # fmt: skip
    words.add_argument(
        "--saves", type=float, default=0,
        help="returns from a save point, for each cycle",
    )  # fmt: skip
    words.add_argument("--animals", default="", help="only these, by a comma")
    words.add_argument("--gpu", action="store_true", help="programs with GPU memory")
    words.add_argument("--folder", type=Path, default=Path("/tmp/soak"))
    words.add_argument(
        "--results", type=Path, default=ROOT / ".cache" / "soak.jsonl",
        help="a line of JSON is added for each run",
    )  # fmt: skip
    words.add_argument(
        "--report", type=Path, nargs="+", metavar="FILE",
        help="add up the runs of these files, print Markdown, and run nothing",
    )  # fmt: skip
    return words.parse_args()


def _animals(args: argparse.Namespace) -> list[Animal]:
    drawn = GPU_ANIMALS if args.gpu else ANIMALS
    known = {one.name: one for one in drawn}
    names = [name for name in args.animals.split(",") if name]
    return [known[name] for name in names] or list(drawn)


def _about(args: argparse.Namespace) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit,
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}",
        "gpu": args.gpu,
        "seed": args.seed,
        "users": args.users,
        "kill_rate": args.kills,
    }


if __name__ == "__main__":
    sys.exit(main())

"""Simulate the whole system, by seed.

python -m simulation --seed 181            one run, with its history
python -m simulation --seed 181 --shrink   ... made short
python -m simulation --seeds 1000          many runs, from --from on
python -m simulation --seconds 30          new ones, for so long
python -m simulation --mutant NAME --seeds 300
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from simulation.mutants import MUTANTS
from simulation.plan import draw
from simulation.runner import Result, run_seed
from simulation.shrink import shrink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from simulation.mutants.patch import Patch


#: Runs after which the count is printed, for whoever ends a long one by force.
COUNT_EVERY = 500


def main(argv: list[str] | None = None) -> int:
    """Run what is asked for; 1 if a law was broken."""
    options = _options(argv)
    patches = MUTANTS[options.mutant].patches if options.mutant else ()
    if options.seed is not None:
        return _one(options.seed, patches, short=options.shrink)
    return _many(_seeds(options), patches, options)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, default=0, help="so many, from --from on")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--seconds", type=float, default=0.0, help="new seeds, so long")
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    parser.add_argument(
        "--shrink", action="store_true", help="make a failing run short"
    )
    parser.add_argument("--keep-going", action="store_true", help="after a failure")
    return parser.parse_args(argv)


def _seeds(options: argparse.Namespace) -> Iterator[int]:
    first = options.first
    if options.seconds:
        first = first or int(time.time()) * 1000
        print(f"seeds from {first} on", flush=True)
        end = time.monotonic() + options.seconds
        yield from itertools.takewhile(
            lambda _: time.monotonic() < end, itertools.count(first)
        )
        return
    yield from range(first, first + (options.seeds or 100))


def _one(seed: int, patches: Iterable[Patch], *, short: bool) -> int:
    result = shrink(draw(seed), patches) if short else run_seed(seed, patches)
    if short:
        print("What happens:", *result.plan.events, sep="\n  ")
        print("How it goes:")
    print("\n".join(result.lines))
    print(f"seed {seed}: {len(result.lines)} lines, hash {result.digest}")
    return int(result.failed)


def _many(
    seeds: Iterable[int], patches: Iterable[Patch], options: argparse.Namespace
) -> int:
    begun = time.process_time()
    sums: Counter[str] = Counter()
    for seed in _until_told(seeds):
        result = run_seed(seed, patches)
        _count(sums, result)
        if sums["runs"] % COUNT_EVERY == 0:
            print(_total(sums, time.process_time() - begun), flush=True)
        if result.failed:
            print(f"seed {seed}: {result.violations[0]}", flush=True)
            print(f"  {_again(seed, options)}", flush=True)
            if not options.keep_going:
                break
    print(_sums(sums, time.process_time() - begun))
    return int(sums["failed"] > 0)


def _until_told(seeds: Iterable[int]) -> Iterator[int]:
    """All of them, or as many as are run when somebody asks us to end.

    The second time we end at once.
    """
    told: list[int] = []
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, frame: object) -> None:
        del frame
        told.append(number)
        signal.signal(number, signal.SIG_DFL)

    try:
        for each in before:
            signal.signal(each, end)
        yield from itertools.takewhile(lambda _: not told, seeds)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _again(seed: int, options: argparse.Namespace) -> str:
    mutant = f" --mutant {options.mutant}" if options.mutant else ""
    return f"python -m simulation --seed {seed}{mutant} --shrink"


def _count(sums: Counter[str], result: Result) -> None:
    sums["runs"] += 1
    sums["failed"] += result.failed
    sums["turns"] += result.turns
    sums["lines"] += len(result.lines)
    sums["calls"] += result.steps
    for event in result.plan.events:
        sums[f"drawn: {event.what}"] += 1


def _sums(sums: Counter[str], seconds: float) -> str:
    drawn = sorted(name for name in sums if name.startswith("drawn"))
    lines = [f"{sums[name]:8} {name.removeprefix('drawn: ')}" for name in drawn]
    return "\n".join([*lines, _total(sums, seconds)])


def _total(sums: Counter[str], seconds: float) -> str:
    runs, turns = sums["runs"] / seconds, sums["turns"] / seconds
    return (
        f"{sums['runs']} runs, {sums['failed']} failed, {sums['lines']} lines,"
        f" {sums['calls']} calls, {sums['turns']} turns in {seconds:.1f} s of CPU:"
        f" {runs:.1f} runs/s, {turns:.0f} turns/s"
    )


if __name__ == "__main__":
    sys.exit(main())

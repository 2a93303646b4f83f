"""Explore the model with other bounds than the tests'.

python -m simulation.model --faults 2 --suspends 2 --visits 3 --kinds orders records
python -m simulation.model --faults 1      every kind by itself
"""

from __future__ import annotations

import argparse
import time

from simulation.model.explorer import explore
from simulation.model.session import KINDS, Broken, start


def main(argv: list[str] | None = None) -> int:
    """Explore, and print how much that was; 1 if a law was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    bounds = {"faults": 2, "suspends": 2, "visits": 2, "works": 1, "naps": 0}
    for name, usual in {**bounds, "saves": 0, "changes": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--kinds", nargs="*", choices=sorted(KINDS), help="at once")
    parser.add_argument("--most", type=int, default=20_000_000, help="states")
    options = vars(parser.parse_args(argv))
    kinds, most = options.pop("kinds"), options.pop("most")
    found = False
    for each in [kinds] if kinds is not None else [[], *([k] for k in sorted(KINDS))]:
        begun, named = time.process_time(), " ".join(each) or "usual faults"
        try:
            explored = explore(start(kinds=each, **options), most=most)
        except Broken as error:
            found = True
            print(f"{named}: {error}", flush=True)
            continue
        took = time.process_time() - begun
        counts = f"{explored.states} states, {explored.steps} steps"
        print(f"{named}: {counts}, {took:.0f} s", flush=True)
    return int(found)


if __name__ == "__main__":
    raise SystemExit(main())

"""Runs of a soak as a table: added up, for a terminal or as Markdown."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from soak.ledger import CONFIDENCE, bound

if TYPE_CHECKING:
    from collections.abc import Sequence

Run = dict[str, Any]
Rows = list[tuple[str, ...]]


def text(runs: Sequence[Run]) -> str:
    """For a terminal."""
    return "\n\n".join(_aligned(rows) for rows in _tables(runs))


def markdown(runs: Sequence[Run]) -> str:
    """For a page."""
    return "\n\n".join(_piped(rows) for rows in _tables(runs))


def _tables(runs: Sequence[Run]) -> list[Rows]:
    found = [_summary(runs), _by_animal(runs), _kills(runs)]
    failures = [one for run in runs for one in run["failures"]]
    if failures:
        found.append(_failures(failures))
    found += [_leaks(run) for run in runs if run.get("leaks")]
    return found


def _summary(runs: Sequence[Run]) -> Rows:
    cycles = sum(sum(run["cycles"].values()) for run in runs)
    lost = sum(one["kind"] == "lost" for run in runs for one in run["failures"])
    late = sum(one["kind"] == "late" for run in runs for one in run["failures"])
    unsaved = sum(one["kind"] == "not saved" for run in runs for one in run["failures"])
    highest = bound(lost, cycles + lost) if cycles + lost else 1.0
    return [
        ("", "in all"),
        ("runs", str(len(runs))),
        ("hours", f"{sum(run['seconds'] for run in runs) / 3600:.1f}"),
        ("sessions", str(sum(sum(run["chains"].values()) for run in runs))),
        ("cycles, each compared", str(cycles)),
        ("kills", str(sum(sum(run["kills"].values()) for run in runs))),
        (
            "suspends that a kill had rolled back",
            str(sum(sum(run["rolled_back"].values()) for run in runs)),
        ),
        ("sessions lost", str(lost)),
        ("returns that did not come in time", str(late)),
        ("suspends refused or failed without a kill", str(unsaved)),
        (
            f"rate of loss, at most ({CONFIDENCE:.0%} sure)",
            f"{highest:.3%}, one in {1 / highest:,.0f}",
        ),
    ]


def _by_animal(runs: Sequence[Run]) -> Rows:
    cycles, backs = _sum(runs, "cycles"), _sum(runs, "rolled_back")
    seconds, chains = _sum(runs, "cycle_seconds"), _sum(runs, "chains")
    failed = Counter(one["animal"] for run in runs for one in run["failures"])
    rows: Rows = [
        ("animal", "sessions", "cycles", "rolled back", "failed", "s a cycle")
    ]
    for name in chains:
        done = cycles[name] + backs[name]
        mean = f"{seconds[name] / done:.1f}" if done else ""
        numbers = (chains[name], cycles[name], backs[name], failed[name])
        rows.append((name, *(f"{number:.0f}" for number in numbers), mean))
    return rows


def _kills(runs: Sequence[Run]) -> Rows:
    rows: Rows = [("part", "kills")]
    rows += [(part, f"{n:.0f}") for part, n in sorted(_sum(runs, "kills").items())]
    return rows


def _failures(failures: Sequence[dict[str, Any]]) -> Rows:
    rows: Rows = [("animal", "cycle", "what", "reason", "kill", "logs")]
    for one in failures:
        reason = one["reason"].strip().splitlines()[-1][:100]
        rows.append(
            (
                one["animal"],
                str(one["cycle"]),
                one["kind"],
                reason,
                one["kill"],
                one["logs"],
            )
        )
    return rows


def _leaks(run: Run) -> Rows:
    before, after = run["leaks"]["before"], run["leaks"]["after"]
    rows: Rows = [(f"run of {run['at']}", "before", "after")]
    rows += [(name, str(before[name]), str(after[name])) for name in before]
    for one in run["leaks"]["growth"]:
        first, last = one["first"], one["last"]
        what = f"{one['program']}, {one['served']} cycles"
        rows.append((f"MiB of {what}", *(f"{x['rss'] >> 20}" for x in (first, last))))
        rows.append(
            (f"descriptors of {what}", *(str(x["descriptors"]) for x in (first, last)))
        )
    return rows


def _sum(runs: Sequence[Run], name: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for run in runs:
        found.update(run[name])
    return found


def _aligned(rows: Rows) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  "
        + "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _piped(rows: Rows) -> str:
    head, *rest = rows
    lines = [head, ("---", *("--:" for _ in head[1:])), *rest]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

"""What a soak has seen: cycles, kills, failures; and how sure that makes us."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Failure:
    """What went wrong in one cycle."""

    animal: str
    user: str
    cycle: int
    kind: str  #: lost, late, not saved, not started
    reason: str
    kill: str  #: what was planned to be killed in this cycle
    logs: str  #: folder with the logs as they were then


@dataclass
class Ledger:
    """One run; safe from several threads.

    Args:
        about: when, where, of which commit, with which options.
    """

    about: dict[str, Any] = field(default_factory=dict)
    cycles: Counter[str] = field(default_factory=Counter)
    #: Suspends that a kill had rolled back: the session ran on.
    rolled_back: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    chains: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    leaks: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _began: float = field(default_factory=time.monotonic)

    def count(self, animal: str, *, saved: bool, seconds: float) -> None:
        """Take note of a cycle that lost nothing."""
        with self._lock:
            (self.cycles if saved else self.rolled_back)[animal] += 1
            self.seconds[animal] = self.seconds.get(animal, 0.0) + seconds

    def begin(self, animal: str) -> None:
        """Take note of a session that was started."""
        with self._lock:
            self.chains[animal] += 1

    def fail(self, failure: Failure) -> None:
        """Take note of a failure."""
        with self._lock:
            self.failures.append(failure)

    @property
    def total(self) -> int:
        """Cycles that were suspended, and came back the same."""
        return self.cycles.total()

    @property
    def lost(self) -> int:
        """Sessions that did not come back as they were."""
        return sum(one.kind == "lost" for one in self.failures)

    def line(self) -> str:
        """This run as one line of JSON."""
        told = {
            **self.about,
            "seconds": round(time.monotonic() - self._began, 1),
            "cycles": dict(self.cycles),
            "rolled_back": dict(self.rolled_back),
            "cycle_seconds": {k: round(v, 1) for k, v in self.seconds.items()},
            "chains": dict(self.chains),
            "kills": dict(self.kills),
            "failures": [asdict(one) for one in self.failures],
            "leaks": self.leaks,
        }
        return json.dumps(told)


def bound(failures: int, tries: int, confidence: float = CONFIDENCE) -> float:
    """The highest rate of failures that what was seen leaves credible.

    The upper end of the one-sided Clopper-Pearson interval: the rate at which as few
    failures as these, or fewer, would be seen with a chance of 1 - confidence. With no
    failure that is close to 3/n.
    """
    if failures >= tries:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        if _at_most(failures, tries, rate) > 1 - confidence:
            low = rate
        else:
            high = rate
    return high


def _at_most(failures: int, tries: int, rate: float) -> float:
    """The chance of so few failures at that rate."""
    if rate in {0.0, 1.0}:
        return float(rate == 0)
    return sum(
        math.exp(
            math.lgamma(tries + 1)
            - math.lgamma(seen + 1)
            - math.lgamma(tries - seen + 1)
            + seen * math.log(rate)
            + (tries - seen) * math.log1p(-rate)
        )
        for seen in range(failures + 1)
    )


def read_line(line: str) -> dict[str, Any]:
    """One run."""
    return dict(json.loads(line))


def read(files: Iterable[Path]) -> list[dict[str, Any]]:
    """All runs in those files."""
    return [
        read_line(line)
        for file in files
        for line in file.read_text().splitlines()
        if line.strip()
    ]

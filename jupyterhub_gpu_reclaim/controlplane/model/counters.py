"""Counters for ``/metrics``.

They cover this program's life only: they begin at zero when it starts. What lasts is in
``accounting.py``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Phase, Step

#: Upper bounds of the histograms of seconds.
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
#: How waiting for a GPU ends: with one, cancelled, or timed out.
WAITS = ("served", "left", "expired")
#: Why a suspend is begun; ``request`` is a person's.
CAUSES = ("idle", "pressure", "request")


@dataclass
class Histogram:
    """Observations in cumulative buckets, as Prometheus has them."""

    buckets: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))
    count: int = 0
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.count += 1
        self.total += seconds
        for index, bound in enumerate(BUCKETS):
            if seconds <= bound:
                self.buckets[index] += 1


@dataclass
class Counters:
    """All counts; keys are bounded sets of our own words."""

    #: operation (``suspend``, ``resume``) and outcome (``ok``, ``failed``)
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: operation and reason code
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: operation and step
    steps: dict[tuple[str, str], Histogram] = field(default_factory=dict)
    #: how waits for a GPU ended (``WAITS``), and how long they were
    waits: dict[str, Histogram] = field(default_factory=dict)
    #: why suspends were begun (``CAUSES``)
    causes: Counter[str] = field(default_factory=Counter)
    logical_bytes: int = 0
    stored_bytes: int = 0
    deduplicated_bytes: int = 0

    def waited(self, outcome: str, seconds: float) -> None:
        """Count the end of one wait."""
        self.waits.setdefault(outcome, Histogram()).observe(seconds)

    def step(self, operation: str, step: Step) -> None:
        """Count a finished step."""
        if step.state == "done":
            histogram = self.steps.setdefault((operation, step.step), Histogram())
            histogram.observe(step.seconds)


@dataclass(frozen=True)
class MetricsSnapshot:
    """Everything that ``/metrics`` shows, at one moment."""

    phases: dict[Phase, int]
    counters: Counters
    checkpoints: int
    stored_bytes: int  #: of all checkpoints that are kept
    #: seconds since the agent's last samples; None: never
    sample_age: float | None
    watched: int  #: sessions with recent samples
    gpu_seconds: float = 0.0  #: that suspended sessions have left to others, in all
    waiting: int = 0  #: sessions that wait for a GPU

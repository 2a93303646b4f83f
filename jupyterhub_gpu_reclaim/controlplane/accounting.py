"""Accounting: GPU time left to others, and time waited, per change of phase.

GPU time lasts: a session's share of it is written in the transaction that ends its
suspension, so that a crash can neither lose a share nor count it twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.session import LIVE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Step
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow


def left(row: SessionRow, gpus: float, now: float, phase: Phase | None = None) -> float:
    """GPUs times seconds; a session counts with the GPUs it held when saved."""
    if row.phase is not Phase.SUSPENDED or phase is Phase.SUSPENDED:
        return 0.0
    return gpus * max(0.0, now - row.since)


def waited(counters: Counters, before: SessionRow, row: SessionRow, now: float) -> None:
    if before.waiting_since is None or row.phase is Phase.RESUMING:
        return
    over = row.tells(Reason.GPU_WAIT_OVER)
    outcome = "served" if row.phase in LIVE else "expired" if over else "left"
    counters.waited(outcome, now - before.waiting_since)


def is_kept(row: SessionRow, now: float) -> bool:
    return (row.kept_until or 0.0) > now or bool(row.opted_out_by)


def took(counters: Counters, before: SessionRow, row: SessionRow, now: float) -> None:
    """A suspend ends when its checkpoint is committed, a resume when it runs."""
    if before.phase is Phase.SUSPENDING and row.phase is Phase.RELEASING:
        counters.took("suspend", now - before.since)
    elif before.phase is Phase.RESUMING and row.phase in LIVE:
        counters.took("resume", now - before.since)


#: Upper bounds of the histograms of seconds.
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
#: Outcomes of waiting for a GPU: with one, cancelled, or timed out.
WAITS = ("served", "left", "expired")
#: States of a GPU that sessions hold: in use if one of them works, or nothing is known
#: of it; else kept, if somebody wants that, or idle. Freed are those which sessions had
#: held that are suspended now, whoever uses them since.
GPU_STATES = (IN_USE, KEPT, IDLE, FREED) = ("in_use", "kept", "idle", "freed")
#: Causes of suspends; ``request`` is a person's.
CAUSES = ("idle", "node_drains", "pressure", "request")


@dataclass
class Histogram:
    buckets: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))
    count: int = 0
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        for index, bound in enumerate(BUCKETS):
            if seconds <= bound:
                self.buckets[index] += 1


@dataclass
class Counters:
    """All counters; keys are bounded sets of our own words."""

    #: operation (``suspend``, ``resume``, ``nap``, ``wake``) and outcome (``ok``,
    #: ``failed``); a session that wakes by its use counts, too
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: operation and reason code
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: operation and step
    steps: dict[tuple[str, str], Histogram] = field(default_factory=dict)
    #: seconds of whole suspends and resumes that succeeded
    whole: dict[str, Histogram] = field(default_factory=dict)
    #: seconds that sessions stood still while they were saved
    still: Histogram = field(default_factory=Histogram)
    #: seconds of waits for a GPU, by outcome (``WAITS``)
    waits: dict[str, Histogram] = field(default_factory=dict)
    #: suspends begun, by cause (``CAUSES``)
    causes: Counter[str] = field(default_factory=Counter)
    #: ends that nobody had ordered, by reason code (``common.endings.REASONS``)
    ends: Counter[str] = field(default_factory=Counter)
    #: wakes that found their card full, and none that could nap for them
    wakes_unserved: int = 0
    #: notices that a webhook or a messenger has not taken
    notices_unsent: int = 0
    logical_bytes: int = 0
    stored_bytes: int = 0
    deduplicated_bytes: int = 0

    def waited(self, outcome: str, seconds: float) -> None:
        self.waits.setdefault(outcome, Histogram()).observe(seconds)

    def took(self, operation: str, seconds: float) -> None:
        self.whole.setdefault(operation, Histogram()).observe(seconds)

    def ended(self, operation: str, outcome: str, code: str = "") -> None:
        self.operations[operation, outcome] += 1
        if code:
            self.failures[operation, code] += 1

    def step(self, operation: str, step: Step) -> None:
        if step.state == "done":
            histogram = self.steps.setdefault((operation, step.step), Histogram())
            histogram.observe(step.seconds)


class GpuCount(NamedTuple):
    """Number of GPUs of one kind in one state; shared ones count by their share."""

    node: str  #: empty: the Hub's own machine
    model: str
    state: str  #: one of ``GPU_STATES``
    number: float


class Risk(NamedTuple):
    """The cost that the end of a running session would have."""

    gpu: bool  #: whether it holds one
    seconds: float  #: since the state that could be brought back, if it was used since


@dataclass(frozen=True)
class MetricsSnapshot:
    phases: dict[Phase, int]
    counters: Counters
    checkpoints: int
    stored_bytes: int  #: of all checkpoints that are kept
    #: seconds since the agent's last samples; None: never
    sample_age: float | None
    watched: int  #: sessions with recent samples
    gpu_seconds: float = 0.0  #: total that suspended sessions have left to others
    waiting: int = 0  #: sessions that wait for a GPU
    napping_bytes: int = 0  #: GPU memory that naps have moved out, now
    kept: int = 0  #: sessions that somebody keeps from being suspended
    save_every: float = 0.0  #: seconds between save points, as set for all; 0: none
    risks: list[Risk] = field(default_factory=list)  #: of sessions that run
    #: sessions of nodes that are drained: node and state -> number
    drained: dict[tuple[str, str], int] = field(default_factory=dict)
    #: bytes that the suspended sessions held, GPU memory included
    suspended_bytes: int = 0
    gpus: list[GpuCount] = field(default_factory=list)

"""Accounting: GPU time left to others, and what is counted.

GPU time lasts: a session's share of it is written in the transaction that ends its
suspension, so that a crash can neither lose a share nor count it twice.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

from jupyterhub_gpu_reclaim.common import endings
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.session import LIVE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric

    from jupyterhub_gpu_reclaim.common.models import Step
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow


#: Upper bounds of the histograms of seconds.
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
#: States of a GPU that sessions hold: in use if one of them works, or nothing is known
#: of it; else kept, if somebody wants that, or idle. Freed are those which sessions had
#: held that are suspended now, whoever uses them since.
GPU_STATES = (IN_USE, KEPT, IDLE, FREED) = ("in_use", "kept", "idle", "freed")
#: Causes of suspends; ``request`` is a person's.
CAUSES = ("idle", "node_drains", "pressure", "request")
OPERATIONS = ("suspend", "resume", "save", "nap", "wake")
OUTCOMES = ("ok", "failed")


class Counters:
    """What has happened since the start; labels are bounded sets of our own words."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        space = "jupyterhub_gpu_reclaim"
        counter = partial(Counter, namespace=space, registry=self.registry)
        seconds = partial(
            Histogram,
            namespace=space,
            registry=self.registry,
            buckets=BUCKETS,
        )
        self.operations = counter(
            "operations",
            "Suspends, resumes, naps and wakes that ended, by outcome; a session that"
            " is woken by its use counts as a wake.",
            ["operation", "outcome"],
        )
        self.failures = counter(
            "operation_failures",
            "Suspends, resumes, naps and wakes that failed, by reason code.",
            ["operation", "code"],
        )
        self.causes = counter(
            "suspends",
            "Suspends that were begun, by cause: idle, node_drains, pressure (another"
            " waited for a GPU), request (a person's).",
            ["cause"],
        )
        self.ends = counter(
            "sessions_ended",
            "Sessions whose programs ended although the Hub had not stopped them, by"
            " reason code.",
            ["code"],
        )
        self.whole = seconds(
            "operation_duration_seconds",
            "Time that a whole suspend, until its checkpoint is committed, or a whole"
            " resume, until the session runs, took that succeeded; a resume with the"
            " time that it waited for a GPU.",
            ["operation"],
        )
        self.still = seconds(
            "session_frozen_seconds",
            "Time that a session stood still while it was saved.",
        )
        self.steps = seconds(
            "step_duration_seconds",
            "Time that one step of a suspend, a resume, a save, a nap or a wake took.",
            ["operation", "step"],
        )
        self.notices_unsent = counter(
            "notices_unsent",
            "Notices that the webhook or the messenger has not taken; each is in the"
            " log.",
        )
        self.waits = seconds(
            "wait_duration_seconds",
            "Time in the queue for a GPU, however it ended.",
        )

    def collect(self) -> Iterable[Metric]:
        """Tell all from 0 on: where a series begins with 1, nobody sees an increase."""
        for operation in OPERATIONS:
            for outcome in OUTCOMES:
                self.operations.labels(operation, outcome)
            for reason in Reason:
                self.failures.labels(operation, reason.value)
        for cause in CAUSES:
            self.causes.labels(cause)
        for reason in endings.REASONS:
            self.ends.labels(reason.value)
        for operation in ("suspend", "resume"):
            self.whole.labels(operation)
        return self.registry.collect()

    def ended(self, operation: str, outcome: str, code: str = "") -> None:
        self.operations.labels(operation, outcome).inc()
        if code:
            self.failures.labels(operation, code).inc()

    def step(self, operation: str, step: Step) -> None:
        if step.state == "done":
            self.steps.labels(operation, step.step).observe(step.seconds)


class GpuCount(NamedTuple):
    """Number of GPUs of one kind in one state; shared ones count by their share."""

    node: str  #: empty: the Hub's own machine
    model: str
    state: str  #: one of ``GPU_STATES``
    number: float


def left(row: SessionRow, gpus: float, now: float, phase: Phase | None = None) -> float:
    """GPUs times seconds; a session counts with the GPUs it held when saved."""
    if row.phase is not Phase.SUSPENDED or phase is Phase.SUSPENDED:
        return 0.0
    return gpus * max(0.0, now - row.since)


def took(counters: Counters, before: SessionRow, row: SessionRow, now: float) -> None:
    """A suspend ends when its checkpoint is committed, a resume when it runs."""
    if before.phase is Phase.SUSPENDING and row.phase is Phase.RELEASING:
        counters.whole.labels("suspend").observe(now - before.since)
    elif before.phase is Phase.RESUMING and row.phase in LIVE:
        counters.whole.labels("resume").observe(now - before.since)

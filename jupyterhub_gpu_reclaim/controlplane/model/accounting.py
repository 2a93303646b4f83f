"""Accounting: GPU time left to others, and time waited, per change of phase.

GPU time lasts: a session's share of it is written in the transaction that ends its
suspension, so that a crash can neither lose a share nor count it twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.controlplane.model.counters import Counters
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow

#: GPUs times seconds; a session counts with the GPUs that it held when it was saved.
GPU_SECONDS = "gpu_seconds_reclaimed"


def leaving(
    row: SessionRow, now: float, phase: Phase | None = None
) -> dict[str, float]:
    """What is added when a session goes from its row's phase to another, or is deleted.

    Args:
        row: the session before that.
        now: seconds since the epoch.
        phase: None: the session is forgotten.
    """
    if row.phase is not Phase.SUSPENDED or phase is Phase.SUSPENDED or not row.gpus:
        return {}
    return {GPU_SECONDS: row.gpus * max(0.0, now - row.since)}


def waited(
    counters: Counters, before: SessionRow, row: SessionRow, now: float
) -> SessionRow:
    """How long a session has waited when it is no longer on its way back."""
    if before.waiting_since is None or row.phase is Phase.RESUMING:
        return row
    failure = row.failure
    over = failure is not None and failure.code == Reason.GPU_WAIT_OVER.value
    outcome = "served" if row.phase in LIVE else "expired" if over else "left"
    counters.waited(outcome, now - before.waiting_since)
    return msgspec.structs.replace(row, waiting_since=None)


def so_far(rows: Iterable[SessionRow], counted: float, now: float) -> float:
    """GPU seconds up to now: what is counted, and the sessions that are suspended."""
    return counted + sum(leaving(row, now).get(GPU_SECONDS, 0.0) for row in rows)

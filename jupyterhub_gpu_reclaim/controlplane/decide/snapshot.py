"""What the policies are asked about: a session's snapshot; and what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from jupyterhub_gpu_reclaim.common.models import SessionPolicy
from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.common.models import Decision
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

    #: Returns every reason for or against a suspend, the deciding one first; pure.
    Decide = Callable[[SessionSnapshot, float], Sequence[Decision]]


class DecideNap(Protocol):
    def after(self, terms: SessionPolicy, /) -> float:
        """Seconds of idleness needed; 0: the session never naps by itself."""

    def __call__(self, snapshot: SessionSnapshot, now: float, /) -> Sequence[Decision]:
        """Return every reason, the deciding one first."""

    @property
    def room_after(self) -> float:
        """Seconds of idleness needed to nap for another session; 0: never."""

    def for_room(self, snapshot: SessionSnapshot, now: float, /) -> Sequence[Decision]:
        """Decide on a nap for a session that wakes and needs the GPU's memory."""


def snapshot_of(sessions: Sessions, row: SessionRow) -> SessionSnapshot:
    runtime = sessions.runtime(row.key)
    usage, probed = runtime.usage, runtime.probed_of(row.incarnation)
    if usage is not None and probed is not None and probed.since is not None:
        usage = usage.used_at(probed.since, "the administrator's probe")
    return SessionSnapshot(
        key=row.key,
        phase=row.phase,
        since=row.since,
        usage=usage,
        probed=probed,
        started_at=row.started_at,
        resumed_at=row.resumed_at,
        kept_until=row.kept_until,
        kept_by=row.kept_by,
        opted_out_by=row.opted_out_by,
        backoff_until=row.backoff_until,
        failure=row.failure,
        gpus=runtime.gpus_to_free(row.incarnation),
        terms=sessions.policy_of(row) or SessionPolicy(),
        wanted=runtime.wanted,
        waking=runtime.shortage_of(row.incarnation) is not None,
    )

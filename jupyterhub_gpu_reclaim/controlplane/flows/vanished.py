"""A session whose programs ended, and nobody had the Hub stop it: what ended it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common import codec, endings
from jupyterhub_gpu_reclaim.controlplane.model.phases import SessionEvent

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Failure
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions


def take(
    sessions: Sessions,
    agent: Agent,
    row: SessionRow,
    told: Failure | None = None,
    **changes: Any,
) -> SessionRow:
    """Note its end, with what the cluster says of it, or else its spawner.

    Args:
        sessions: the rows.
        agent: knows what the cluster says of pods.
        row: the session.
        told: by its spawner; None: nothing.
        **changes: other columns, as of ``Sessions.apply``.
    """
    unknown = codec.failure_of(endings.by_itself("how is not known"))
    failure = agent.ending(row.incarnation) or told or unknown
    sessions.counters.ends[failure.code] += 1
    return sessions.apply(
        row.key,
        SessionEvent.VANISHED,
        failure=failure,
        **{"checkpoint": "", "attempt": "", **changes},
    )

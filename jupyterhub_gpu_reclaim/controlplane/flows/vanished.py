"""Notes the end of a session whose programs ended without a stop by the Hub."""

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
    """Note a session's end, with what the cluster or its spawner says of it.

    Args:
        sessions: the rows.
        agent: tells the cluster's word about pods.
        row: the session.
        told: the spawner's word; None: none.
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

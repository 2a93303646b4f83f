"""Orders the ends of incarnations, and notes those that have ended by themselves.

An order without an answer may still be carried out, and cannot be taken back. So its
incarnation is not the session any more, however well it runs: once adopted, it would be
ended under its user's hands. The next service need not know of it: what an agent has
shown to a higher term it does not end for us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec, endings
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.controlplane.model.phases import SessionEvent

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Failure, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions


async def end(
    sessions: Sessions, agent: Agent, key: SessionKey, incarnation: str
) -> None:
    """End an incarnation; one that is not there has ended.

    Raises:
        Unreachable: no answer; it may have ended, or end later.
        Refused: it is being captured.
    """
    before = is_ordered(sessions, key, incarnation)
    sessions.runtime(key).ending |= {incarnation}
    try:
        await agent.order(incarnation, orders.Kill())
    except NotFound:
        pass
    except Refused:
        if not before:  # else an earlier order may still be on its way
            forget(sessions, key, incarnation)
        raise
    forget(sessions, key, incarnation)


def is_ordered(sessions: Sessions, key: SessionKey, incarnation: str) -> bool:
    return incarnation in sessions.runtime(key).ending


def forget(sessions: Sessions, key: SessionKey, incarnation: str) -> None:
    """Forget an order: it was carried out, or the Hub says that the session runs."""
    sessions.runtime(key).ending -= {incarnation}


def vanished(
    sessions: Sessions,
    agent: Agent,
    row: SessionRow,
    told: Failure | None = None,
    **changes: Any,
) -> SessionRow:
    """Note a session's end, with what the cluster or its spawner says of it."""
    unknown = codec.failure_of(endings.by_itself("how is not known"))
    failure = agent.ending(row.incarnation) or told or unknown
    sessions.counters.ends[failure.code] += 1
    return sessions.apply(
        row.key,
        SessionEvent.VANISHED,
        failure=failure,
        **{"checkpoint": "", "attempt": "", **changes},
    )

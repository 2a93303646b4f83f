"""Orders the ends of incarnations, and remembers those without an answer.

An order without an answer may still be carried out, and cannot be taken back. So its
incarnation is not the session any more, however well it runs: once adopted, it would be
ended under its user's hands.

The orders are known to this program only, since they matter to this one only: the next
service's term is higher, and what an agent has shown to that one it does not end for
us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
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
    """Whether an end was ordered, and nobody has said what became of that."""
    return incarnation in sessions.runtime(key).ending


def forget(sessions: Sessions, key: SessionKey, incarnation: str) -> None:
    """Forget an order: it was carried out, or the Hub says that the session runs."""
    sessions.runtime(key).ending -= {incarnation}

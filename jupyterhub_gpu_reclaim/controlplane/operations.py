"""Operations of agents: an order is given, and followed to its end.

Said here once for suspend, save, nap, wake and resume: how long one may take, what
calls it off, and what its end means. The flows decide what follows from that.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.agent_orders import Cancel
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    ReclaimError,
    Refused,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import Event, Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.agent_orders import AgentOrder
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


async def end_of(
    sessions: Sessions,
    row: SessionRow,
    order: AgentOrder,
    name: str,
    *,
    hear: Callable[[Event], bool] = lambda _: True,
    is_over: Callable[[SessionRow], bool] | None = None,
) -> Event:
    """Give an order, or attach to it; its last event, a refusal as its failure.

    ``hear`` is told of each event, and returns whether its step counts. Once
    ``is_over`` says so of the row, the order is called off.

    Raises:
        Unreachable: the agent was lost on the way, or has taken too long; the
            operation may go on there.
    """
    calling = is_over and asyncio.create_task(_call_off_once(sessions, row, is_over))
    limit = sessions.settings.operation_limit
    try:
        async with asyncio.timeout(limit):
            async for event in sessions.agent.follow(row.incarnation, order):
                counts = hear(event)
                if event.step is None:
                    return event
                if counts:
                    sessions.counters.step(name, event.step)
    except TimeoutError:
        if not order.cancellable:
            late = Refused(Reason.TIMED_OUT, step=order.kind, seconds=limit)
            return Event(failure=codec.failure_of(late))
        with suppress(NotFound):
            await sessions.agent.order(row.incarnation, Cancel())
        raise Unreachable(Reason.AGENT_UNREACHABLE, detail=order.kind) from None
    except Unreachable:
        raise
    except ReclaimError as error:
        return Event(failure=codec.failure_of(error))
    finally:
        if calling:
            calling.cancel()
    raise Unreachable(Reason.AGENT_UNREACHABLE, detail="the stream broke")


async def call_off(sessions: Sessions, row: SessionRow) -> None:
    """Cancel a suspend under way, unless its node is drained."""
    if row.phase is Phase.SUSPENDING and sessions.drains.of_session(row) is None:
        with suppress(Refused, NotFound):
            await sessions.agent.order(row.incarnation, Cancel())


async def _call_off_once(
    sessions: Sessions, row: SessionRow, is_over: Callable[[SessionRow], bool]
) -> None:
    """Cancel again and again: an order may have come before the agent had begun."""
    limit = sessions.settings.operation_limit
    while await sessions.until(row.key, is_over, limit):
        with suppress(ReclaimError):
            await sessions.agent.order(row.incarnation, Cancel())
        await sessions.clock.sleep(sessions.settings.pace)

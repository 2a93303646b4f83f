"""Sessions over time: lines of the last hour, totals, use of the store.

Totals and use of the store cover all users and are for managers; lines are limited to
the sessions that the caller may see.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, ClassVar

import msgspec

from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.sessions.history import Line
from jupyterhub_gpu_reclaim.controlplane.sessions.totals import KEPT, StoreUse, Totals
from jupyterhub_gpu_reclaim.service.api.base import Forbidden, PersonRoute, Route
from jupyterhub_gpu_reclaim.service.api.openapi import Query, operation
from jupyterhub_gpu_reclaim.service.api.people import NAMED, named_sessions

#: Lines that are made in one step.
_AT_ONCE = 500
MOST_HOURS = KEPT // 3600

_Hours = Annotated[int, msgspec.Meta(ge=1, le=MOST_HOURS)]


class ManagerRoute(PersonRoute):
    """A call for managers, who may see all sessions."""

    async def prepare(self) -> None:
        """Let managers in.

        Raises:
            Forbidden: it covers all users' sessions.
        """
        await super().prepare()
        if not self._finished and not self.person.manages:
            raise Forbidden(Reason.FORBIDDEN)


class Lines(PersonRoute):
    """GPU use of the last hour."""

    path: ClassVar = "api/lines"

    @operation(
        "What the sessions that you may see did on their GPUs in the last hour; those"
        " that held none are left out",
        answer=list[Line],
        query=(NAMED,),
    )
    async def get(self) -> None:
        """List them, by user and server."""
        control = self.context.control
        keys = named_sessions(self) or {view.key for view in control.sessions()}
        seen = sorted(key for key in keys if self.person.may_see(key))
        lines: list[Line] = []
        for at in range(0, len(seen), _AT_ONCE):
            lines += control.lines(set(seen[at : at + _AT_ONCE]))
            await asyncio.sleep(0)  # ten thousand in one step would hold others up
        self.answer(lines)


class TotalsOfAll(ManagerRoute):
    """GPUs in use, idle and freed, and sessions by phase, over time."""

    path: ClassVar = "api/totals"

    @operation(
        "All sessions together, now and over the last hours; for managers",
        answer=Totals,
        query=(Query("hours", _Hours, "How far back; 24 by itself."),),
    )
    async def get(self) -> None:
        """Answer with them."""
        self.answer(self.context.control.totals(hours_of(self)))


class StoreOfAll(ManagerRoute):
    """Checkpoints in the store, by user."""

    path: ClassVar = "api/store"

    @operation(
        "What everybody's checkpoints take in the store, the largest first; for"
        " managers",
        answer=list[StoreUse],
    )
    async def get(self) -> None:
        """List it."""
        self.answer(self.context.control.store_use())


def hours_of(route: Route) -> int:
    """How far back the query asks for.

    Raises:
        BadRequest: not a number of hours, or more than is kept.
    """
    hours = route.number("hours", 24)
    if not 1 <= hours <= MOST_HOURS:
        what = f"The parameter 'hours' must be between 1 and {MOST_HOURS}."
        raise BadRequest(Reason.INVALID, what=what)
    return hours


ROUTES: tuple[type[Route], ...] = (Lines, TotalsOfAll, StoreOfAll)

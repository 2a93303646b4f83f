"""What many sessions did over time: lines of the last hour, totals, use of the store.

Called by the service's pages, the admin panel and by programs. The totals and the
store's use tell of everybody and are for managers; of lines each caller gets those of
the sessions that they may see.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from jupyterhub_gpu_reclaim.errors import BadRequest
from jupyterhub_gpu_reclaim.models import SessionKey
from jupyterhub_gpu_reclaim.orchestrator.history import Line
from jupyterhub_gpu_reclaim.orchestrator.totals import KEPT, StoreUse, Totals
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.service.openapi import Query, operation
from jupyterhub_gpu_reclaim.service.routes.base import Forbidden, PersonRoute, Route

#: Most sessions that one call may name.
MOST_NAMED = 500
MOST_HOURS = KEPT // 3600

_Hours = Annotated[int, msgspec.Meta(ge=1, le=MOST_HOURS)]
_Named = Annotated[list[str], msgspec.Meta(max_length=MOST_NAMED)]


class ManagerRoute(PersonRoute):
    """A call for those who may see all sessions."""

    async def prepare(self) -> None:
        """Let in who manages.

        Raises:
            Forbidden: it tells of everybody's sessions.
        """
        await super().prepare()
        if not self.person.manages:
            raise Forbidden(Reason.FORBIDDEN)


class Lines(PersonRoute):
    """GPU use of the last hour."""

    path: ClassVar = "api/lines"

    @operation(
        "What the sessions that you may see did on their GPUs in the last hour; those"
        " that held none are left out",
        answer=list[Line],
        query=(
            Query(
                "session",
                _Named,
                f"`user/server`, up to {MOST_NAMED} times; none: all that you may see.",
            ),
        ),
    )
    async def get(self) -> None:
        """List them, by user and server."""
        control = self.context.control
        named = self.get_query_arguments("session")
        if len(named) > MOST_NAMED:
            what = f"Name at most {MOST_NAMED} sessions."
            raise BadRequest(Reason.INVALID, what=what)
        if named:
            parts = (name.partition("/") for name in named)
            keys = {SessionKey(user, server) for user, _, server in parts}
        else:
            keys = {view.key for view in control.sessions()}
        self.answer(control.lines({key for key in keys if self.person.may_see(key)}))


class TotalsOfAll(ManagerRoute):
    """GPUs in use, idle and freed, and sessions by phase, over time."""

    path: ClassVar = "api/totals"

    @operation(
        "All sessions together, now and over the last hours; for managers",
        answer=Totals,
        query=(Query("hours", _Hours, "How far back; 24 by itself."),),
    )
    async def get(self) -> None:
        """Tell them."""
        self.answer(self.context.control.totals(hours_of(self)))


class StoreOfAll(ManagerRoute):
    """What is saved, user by user."""

    path: ClassVar = "api/store"

    @operation(
        "What everybody's saved sessions take in the store, the largest first; for"
        " managers",
        answer=list[StoreUse],
    )
    async def get(self) -> None:
        """List it."""
        self.answer(self.context.control.store_use())


def hours_of(route: Route) -> int:
    """How far back somebody wants to look.

    Raises:
        BadRequest: not at all, or further than anything is kept.
    """
    hours = route.number("hours", 24)
    if not 1 <= hours <= MOST_HOURS:
        what = f"The parameter 'hours' must be between 1 and {MOST_HOURS}."
        raise BadRequest(Reason.INVALID, what=what)
    return hours


ROUTES: tuple[type[Route], ...] = (Lines, TotalsOfAll, StoreOfAll)

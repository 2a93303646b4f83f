"""Sessions over time and all together: last hour, months, history, GPU queue.

Reports cover all users and are for managers; all else is limited to the sessions that
the caller may see. Of other people's sessions the queue only says since when they wait
and for how many GPUs.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, ClassVar

import msgspec

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey, Waiting
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.report import MONTH, Report, bounds, month_at
from jupyterhub_gpu_reclaim.controlplane.api.audit_text import AuditPage
from jupyterhub_gpu_reclaim.controlplane.sessions.history import Line
from jupyterhub_gpu_reclaim.service.api.base import (
    Count,
    ManagerRoute,
    PersonRoute,
    Route,
)
from jupyterhub_gpu_reclaim.service.api.openapi import Query, operation
from jupyterhub_gpu_reclaim.service.api.people import NAMED, named_sessions

#: Lines that are made in one step.
_AT_ONCE = 500

_Month = Annotated[str, msgspec.Meta(pattern=f"^{MONTH}$")]


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
        """List the sessions, by user and server."""
        control = self.context.control
        keys = named_sessions(self) or {view.key for view in control.users.sessions()}
        seen = sorted(key for key in keys if self.person.may_see(key))
        lines: list[Line] = []
        for at in range(0, len(seen), _AT_ONCE):
            lines += control.lines(set(seen[at : at + _AT_ONCE]))
            await asyncio.sleep(0)  # ten thousand in one step would hold others up
        self.answer(lines)


class MonthlyReport(ManagerRoute):
    """GPU time that was reclaimed in a month."""

    path: ClassVar = "api/report"

    @operation(
        "GPU-hours that suspended sessions have left to others in a month, by user,"
        " group, node and GPU; for managers",
        answer=Report,
        query=(
            Query("month", _Month, "Such as `2026-11`; this month by itself. UTC."),
        ),
    )
    async def get(self) -> None:
        """Answer with the report."""
        self.answer(await report_of(self))


async def report_of(route: Route) -> Report:
    """The report of the month that the query names.

    Raises:
        BadRequest: it is no month.
        Unreachable: the Hub does not tell the groups.
    """
    context = route.context
    month = route.get_query_argument("month", month_at(context.clock.now()))
    bounds(month)
    return context.control.report(month, await context.groups())


class Queue(PersonRoute):
    """The queue for GPUs."""

    path: ClassVar = "api/queue"

    @operation(
        "Who waits for a GPU, in the order of the queue; `key` and `reason` only of"
        " sessions that you may see",
        answer=list[Waiting],
    )
    async def get(self) -> None:
        """List the waiting sessions."""
        self.answer(
            [self._as_visible(waiting) for waiting in self.context.control.waiting()]
        )

    def _as_visible(self, waiting: Waiting) -> Waiting:
        if waiting.key is not None and self.person.may_see(waiting.key):
            return waiting
        return msgspec.structs.replace(waiting, key=None, reason="")


#: Most lines in one answer.
LONGEST_PAGE = 500


def story_since(page: AuditPage, since: float) -> AuditPage:
    """Remove older lines from a page; then there is no older page either."""
    lines = [line for line in page.lines if line.at >= since]
    return page if len(lines) == len(page.lines) else AuditPage(lines=lines)


class UserHistory(PersonRoute):
    """The history of all sessions of a user, the deleted ones included."""

    path: ClassVar = "api/users/{user}/history"

    @operation(
        "What happened to the user's sessions and why, the newest first; deleted"
        " sessions, too",
        answer=AuditPage,
        query=(
            Query("limit", Count, "At most that many lines; 100 by itself."),
            Query("before", Count, "Only lines with a smaller id: `next` of a page."),
        ),
        errors=(404,),
    )
    async def get(self, user: str) -> None:
        """Answer with one page of the history.

        Raises:
            NotFound: another user.
        """
        if not self.person.may_see(SessionKey(user)):
            raise NotFound(Reason.UNKNOWN_SESSION, session=user)
        limit = min(max(self.number("limit", 100), 1), LONGEST_PAGE)
        before = self.number("before")
        since = await self.seen_since(user)
        self.answer(
            story_since(self.context.control.users.story(user, before, limit), since)
        )


ROUTES: tuple[type[Route], ...] = (
    Lines,
    MonthlyReport,
    Queue,
    UserHistory,
)

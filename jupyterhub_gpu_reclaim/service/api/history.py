"""History and GPU queue, limited to the sessions that the caller may see.

Of other people's sessions the queue only says since when they wait and for how many
GPUs.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey, Waiting
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.api.audit_text import AuditPage
from jupyterhub_gpu_reclaim.service.api.base import (
    Count,
    PersonRoute,
    Route,
)
from jupyterhub_gpu_reclaim.service.api.openapi import Query, operation


class Queue(PersonRoute):
    path: ClassVar = "api/queue"

    @operation(
        "Who waits for a GPU, in the order of the queue; `key` and `reason` only of"
        " sessions that you may see",
        answer=list[Waiting],
    )
    async def get(self) -> None:
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
    Queue,
    UserHistory,
)

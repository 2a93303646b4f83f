"""What happened to a user's sessions, for that user and for managers. It reads only."""

from __future__ import annotations

from typing import ClassVar

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.api.audit_text import StoryPage
from jupyterhub_gpu_reclaim.service.api.base import Count, PersonRoute, Route
from jupyterhub_gpu_reclaim.service.api.openapi import Query, operation

#: Most lines in one answer.
LONGEST_PAGE = 500


def story_since(page: StoryPage, since: float) -> StoryPage:
    """That page without older lines; then there is no older page either."""
    lines = [line for line in page.lines if line.at >= since]
    return page if len(lines) == len(page.lines) else StoryPage(lines=lines)


class UserHistory(PersonRoute):
    """What happened to all sessions of a user, also to those that are deleted."""

    path: ClassVar = "api/users/{user}/history"

    @operation(
        "What happened to the user's sessions and why, the newest first; deleted"
        " sessions, too",
        answer=StoryPage,
        query=(
            Query("limit", Count, "At most that many lines; 100 by itself."),
            Query("before", Count, "Only lines with a smaller id: `next` of a page."),
        ),
        errors=(404,),
    )
    async def get(self, user: str) -> None:
        """Answer with one page of it.

        Raises:
            NotFound: another user.
        """
        if not self.person.may_see(SessionKey(user)):
            raise NotFound(Reason.UNKNOWN_SESSION, session=user)
        limit = min(max(self.number("limit", 100), 1), LONGEST_PAGE)
        before = self.number("before")
        since = await self.seen_since(user)
        self.answer(story_since(self.context.control.story(user, before, limit), since))


ROUTES: tuple[type[Route], ...] = (UserHistory,)

"""The pages' forms, which work without scripts, and the "start fresh" page.

They count with the proof in the page (``api/visits.py``). Every action goes through the
same calls as the API's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.orders import (
    KINDS,
    BringBack,
    EndTree,
    Keep,
    OptOut,
    Order,
    Save,
)
from jupyterhub_gpu_reclaim.common.reasons import ASKS, Reason
from jupyterhub_gpu_reclaim.service.api.people import give
from jupyterhub_gpu_reclaim.service.web.pages import DONE, SESSION_PATH, Page

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey


class Act(Page):
    """A press of a card's button."""

    async def post(self, user: str, server: str, action: str) -> None:
        """Do the action and lead back to the page that its button was pressed on."""
        key = self.key(user, server)
        action = await self._act(key, action)
        if self.for_script:
            self.set_header("Content-Type", "application/json")
            self.finish(codec.encode(DONE[action]))
        else:
            self.redirect(self._back(key, action), status=303)

    def _back(self, key: SessionKey, action: str) -> str:
        """The page's address, made here: nothing in a form leads elsewhere."""
        prefix, page = self.context.prefix, self.get_body_argument("page", "mine")
        if page == "start":  # the Hub's page of a start, which shows how it goes
            return self.start_url(key)
        if page == "one":
            return f"{prefix}sessions/{key.path}?done={action}"
        return f"{prefix}mine?done={action}"

    async def _act(self, key: SessionKey, action: str) -> str:
        """Do the action; returns the name of the page's message about it."""
        if action == "delete":
            users, by = self.context.control.users, self.person.label
            checkpoint = self.get_body_argument("checkpoint", "")
            answer = await users.delete(key, by, checkpoint or None)
            return action if answer.deleted else "delete-later"
        order = self._order(action)
        await give(self, key, order)
        if isinstance(order, Keep):
            return "keep" if order.seconds else "keep-off"
        if isinstance(order, OptOut):
            return "pin" if order.out else "unpin"
        return action

    def _order(self, action: str) -> Order:
        """The order that the form has the fields of."""
        said = self.get_body_argument
        match action:
            case "keep":
                return Keep(self.seconds())
            case "pin":
                return OptOut(said("out", "") == "1")
            case "save":
                return Save(said("name", ""))
            case "bring-back":
                return BringBack(said("checkpoint", ""), said("save", "") == "1")
            case "end-tree":
                return EndTree(said("incarnation", ""))
            case _:
                return KINDS[action]()


class Fresh(Page):
    """The "start fresh" page: what happens to the checkpoint, and the button for it.

    The Hub's own page leads here if a session could not be resumed.
    """

    async def get(self, user: str, server: str) -> None:
        """Ask for confirmation."""
        view = self.context.control.users.session(self.key(user, server))
        (shown,) = self.cards([view])
        failure = view.failure
        self.page(
            "fresh.html",
            card=shown,
            saved=view.phase is Phase.SUSPENDED and bool(view.checkpoint),
            renamed=failure is not None and failure.code == Reason.RENAMED.value,
            start=self.start_url(self.key(user, server)),
            asks=failure is not None and Reason.of(failure.code) in ASKS,
            files_newer=failure is not None
            and failure.code == Reason.FILES_NEWER.value,
            days=f"{self.context.limits.set_aside_days:g}",
            xsrf=self.xsrf(),
        )

    async def post(self, user: str, server: str) -> None:
        """Set the checkpoint aside and lead to the Hub's start page."""
        key = self.key(user, server)
        await self.context.control.users.start_fresh(key, self.person.label)
        self.redirect(self.start_url(key), status=303)


_ACTIONS = "|".join(each for each in (*KINDS, "pin", "delete") if each in DONE)


ROUTES = (
    (f"{SESSION_PATH}/fresh", Fresh),
    (f"{SESSION_PATH}/({_ACTIONS})", Act),
)

"""The pages' forms, which work without scripts, and the "start fresh" page.

They count with the proof in the page (``api/visits.py``). Every action goes through the
same calls as the API's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from tornado.web import HTTPError

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import ASKS, Reason
from jupyterhub_gpu_reclaim.service.api.base import Forbidden
from jupyterhub_gpu_reclaim.service.api.people import check_opt_out
from jupyterhub_gpu_reclaim.service.web.manager.table import Wanted
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
        if page == "store":
            query = dict(parse_qsl(self.get_body_argument("query", "")))
            kept = {name: query.get(name, "") for name in ("user", "order")}
            return f"{prefix}store?{urlencode({**kept, 'done': action})}"
        if page != "all":
            return f"{prefix}mine?done={action}"
        wanted = Wanted.of(self.get_body_argument("query", "")).query()
        return f"{prefix}all?{wanted}{'&' if wanted else ''}done={action}"

    async def _act(self, key: SessionKey, action: str) -> str:
        """Do the action; returns the name of the page's message about it."""
        control, by = self.context.control, self.person.label
        if action == "suspend":
            await control.users.suspend(key, by)
        elif action == "save":
            await control.users.save(key, by, self.get_body_argument("name", ""))
        elif action == "resume":
            await control.users.resume(key, by, manages=self.person.manages)
        elif action == "put-files-back":
            await control.users.put_files_back(key, by, manages=self.person.manages)
        elif action == "keep":
            manages, seconds = self.person.manages, self.seconds()
            await control.users.keep(key, seconds, by, manages=manages)
            return "keep" if seconds else "keep-off"
        elif action in {"bring-back", "delete"}:
            return await self._act_on_saved(key, action)
        elif action == "pin":
            out = self.get_body_argument("out", "") == "1"
            await control.users.opt_out(key, check_opt_out(self, out), by)
            return "pin" if out else "unpin"
        elif action == "revoke-tabs":
            await control.users.revoke_tabs(key, by)
        else:
            await self._manage(key, action)
        return action

    async def _act_on_saved(self, key: SessionKey, action: str) -> str:
        """Do an action on one of its checkpoints; returns its message's name."""
        users, by = self.context.control.users, self.person.label
        checkpoint = self.get_body_argument("checkpoint", "")
        if action == "bring-back":
            save = self.get_body_argument("save", "") == "1"
            manages = self.person.manages
            await users.bring_back(
                key, checkpoint, by, save_running=save, manages=manages
            )
        else:
            answer = await users.delete(key, by, checkpoint or None)
            return action if answer.deleted else "delete-later"
        return action

    async def _manage(self, key: SessionKey, action: str) -> None:
        """Do an action for managers only."""
        control, by = self.context.control, self.person.label
        if not self.person.manages:
            raise Forbidden(Reason.FORBIDDEN)
        if action == "renew-login":
            await control.users.renew_login(key, by)
        elif action == "nap":
            await control.users.nap(key, by)
        elif action == "wake":
            await control.users.wake(key, by)
        elif action == "end-tree":
            incarnation = self.get_body_argument("incarnation", "")
            await control.users.end_second(key, incarnation, by)
        else:
            raise HTTPError(404)


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


_ACTIONS = (
    "suspend|resume|put-files-back|save|nap|wake|keep|pin|delete|bring-back|renew-login|end-tree"
    "|revoke-tabs"
)


ROUTES = (
    (f"{SESSION_PATH}/fresh", Fresh),
    (f"{SESSION_PATH}/({_ACTIONS})", Act),
)

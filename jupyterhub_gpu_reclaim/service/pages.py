"""The service's own pages: sessions with their reasons and buttons, and "start fresh".

Plain HTML forms that work without JavaScript; a script keeps the cards up to date.
Called by browsers with the Hub's OAuth login. Every action goes through the same
calls as the API's.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as _quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from jupyterhub.services.auth import HubOAuthCallbackHandler
from tornado.web import HTTPError, StaticFileHandler

from jupyterhub_gpu_reclaim.errors import BadRequest
from jupyterhub_gpu_reclaim.models import Phase
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.service.cards import Card, card
from jupyterhub_gpu_reclaim.service.routes.base import (
    PersonRoute,
    Route,
    Unauthenticated,
)

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.models import Failure, SessionKey, SessionView

#: What the page says after a form was taken, by the form's name.
_DONE = {
    "suspend": "The session is being saved.",
    "resume": "The session is coming back.",
    "keep": "Noted.",
    "delete": "The saved session is deleted.",
}


def templates() -> Environment:
    """The templates that come with the package; everything is escaped."""
    return Environment(
        loader=PackageLoader("jupyterhub_gpu_reclaim", "ui/service/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


class HtmlErrors(Route):
    """A handler that answers with pages, also when something is wrong."""

    def set_default_headers(self) -> None:
        """Only our own scripts and styles, and forms that lead to us or to the Hub."""
        super().set_default_headers()
        self.set_header("Content-Type", "text/html; charset=utf-8")
        host = self.context.hub_host
        self.set_header(
            "Content-Security-Policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; "
            f"img-src 'self' {host}; connect-src 'self'; base-uri 'none'; "
            f"form-action 'self' {host}; frame-ancestors 'none'",
        )

    def page(self, name: str, **values: Any) -> None:
        """Answer with a template."""
        context = self.context
        text = context.templates.get_template(name).render(
            prefix=context.prefix,
            hub=context.hub_host + context.hub_prefix,
            person=getattr(self, "person", None),
            **values,
        )
        self.finish(text)

    def write_failure(self, failure: Failure) -> None:
        """The failure's sentence on a page."""
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.page("failure.html", failure=failure)


class Page(PersonRoute, HtmlErrors):
    """A page for somebody who is logged in; a visit without a login leads to it."""

    async def prepare(self) -> None:
        """Log in where that is missing."""
        try:
            await super().prepare()
        except Unauthenticated:
            if self.request.method not in ("GET", "HEAD"):
                raise
            self.redirect(self.get_login_url())

    @property
    def user_prefix(self) -> str:
        """Where the Hub serves ``user/<name>/``."""
        context = self.context
        return context.hub_host + context.hub_prefix.removesuffix("hub/")

    def card(self, view: SessionView) -> Card:
        """A session as the templates print it."""
        return card(view, now=self.context.clock.now(), user_prefix=self.user_prefix)

    def xsrf(self) -> str:
        """The token that forms and scripts have to send back."""
        token = self.xsrf_token
        return token.decode() if isinstance(token, bytes) else str(token)


class Index(Page):
    """All sessions that the visitor may see, their own first."""

    async def get(self) -> None:
        """Show them."""
        views = [
            view
            for view in self.context.control.sessions()
            if self.person.may_see(view.key)
        ]
        views.sort(key=lambda view: (view.key.user != self.person.name, view.key))
        mine = [self.card(v) for v in views if v.key.user == self.person.name]
        others = [self.card(v) for v in views if v.key.user != self.person.name]
        done = _DONE.get(self.get_query_argument("done", ""), "")
        self.page(
            "sessions.html", mine=mine, others=others, done=done, xsrf=self.xsrf()
        )


class Fragment(Page):
    """One session's card, for the script that keeps the page up to date."""

    async def prepare(self) -> None:
        """A script is never led to a login."""
        await PersonRoute.prepare(self)

    async def get(self, user: str, server: str) -> None:
        """Show it."""
        view = self.context.control.session(self.key(user, server))
        self.page("fragment.html", card=self.card(view), xsrf=self.xsrf())


class Act(Page):
    """A button of a card was pressed."""

    async def post(self, user: str, server: str, action: str) -> None:
        """Do it and lead back to the sessions."""
        key = self.key(user, server)
        await self._act(key, action)
        self.redirect(f"{self.context.prefix}?done={action}", status=303)

    async def _act(self, key: SessionKey, action: str) -> None:
        control, by = self.context.control, self.person.label
        if action == "suspend":
            await control.suspend(key, by)
        elif action == "resume":
            await control.resume(key, by)
        elif action == "keep":
            manages = self.person.manages
            await control.keep(key, self._seconds(), by, manages=manages)
        elif action == "delete":
            checkpoint = self.get_body_argument("checkpoint", "")
            await control.discard(key, by, checkpoint or None)
        else:
            raise HTTPError(404)

    def _seconds(self) -> float:
        text = self.get_body_argument("seconds", "")
        try:
            return float(text)
        except ValueError:
            what = "The form's 'seconds' must be a number."
            raise BadRequest(Reason.INVALID, what=what) from None


class Fresh(Page):
    """The "start fresh" page: what happens to the saved session, and the button for it.

    The Hub's own page leads here when a session could not be brought back.
    """

    async def get(self, user: str, server: str) -> None:
        """Ask."""
        view = self.context.control.session(self.key(user, server))
        self.page(
            "fresh.html",
            card=self.card(view),
            failure=view.failure,
            saved=view.phase is Phase.SUSPENDED and bool(view.checkpoint),
            start=self._start(user, server),
            days=f"{self.context.limits.set_aside_days:g}",
            xsrf=self.xsrf(),
        )

    async def post(self, user: str, server: str) -> None:
        """Put the saved session aside and lead to the Hub's start page."""
        key = self.key(user, server)
        await self.context.control.start_fresh(key, self.person.label)
        self.redirect(self._start(user, server), status=303)

    def _start(self, user: str, server: str) -> str:
        key = self.key(user, server)
        path = _quote(key.user, safe="")
        if key.server:
            path += "/" + _quote(key.server, safe="")
        return f"{self.context.hub_host}{self.context.hub_prefix}spawn/{path}"


class OAuthCallback(HubOAuthCallbackHandler, HtmlErrors):
    """The Hub's answer to a login; sets the cookie and goes on."""


class NoPage(HtmlErrors):
    """Any address that no page has."""

    async def prepare(self) -> None:
        """Say so."""
        raise HTTPError(404)


def rules(prefix: str) -> list[tuple[Any, ...]]:
    """The tornado rules of the pages under a URL prefix."""
    base = re.escape(prefix)
    one = rf"{base}sessions/([^/]+)/([^/]+)"
    static = files("jupyterhub_gpu_reclaim") / "ui" / "service" / "static"
    return [
        (base, Index),
        (rf"{one}/card", Fragment),
        (rf"{one}/fresh", Fresh),
        (rf"{one}/(suspend|resume|keep|delete)", Act),
        (rf"{base}oauth_callback", OAuthCallback),
        (rf"{base}static/(.+)", StaticFileHandler, {"path": str(static)}),
    ]

"""The service's own pages: sessions with their reasons and buttons.

Plain HTML forms that work without JavaScript; a script keeps the cards up to date. The
login is the Hub's OAuth. What the buttons do is in ``forms.py``, the managers' pages in
``manager``.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from jupyterhub.services.auth import HubOAuthCallbackHandler
from tornado.web import HTTPError, StaticFileHandler

from jupyterhub_gpu_reclaim.common import codec, text
from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.node_status import no_return
from jupyterhub_gpu_reclaim.common.orders import ORDERS
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api.base import (
    Forbidden,
    NothingHere,
    PersonRoute,
    Route,
    Unauthenticated,
)
from jupyterhub_gpu_reclaim.service.api.visits import SANDBOX, is_told, is_visit
from jupyterhub_gpu_reclaim.service.web.cards import ago, card

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import SimpleNamespace

    from jupyterhub_gpu_reclaim.common.models import Failure, SessionView
    from jupyterhub_gpu_reclaim.service.api.visits import PageLogins

#: What pages say after an order was given, by the name that their address has of it.
TOLD = {each.kind: each.done for each in ORDERS} | {
    f"{each.kind}-else": each.done_else for each in ORDERS if each.done_else
}
#: The cookie in which the Hub's pages tell the chosen colours (``hub/templates``).
THEME_COOKIE = "gpu-reclaim-theme"
#: Lines of a log on one page.
_LOG_LINES = 50


def templates() -> Environment:
    """The templates that come with the package; everything is escaped."""
    environment = Environment(
        loader=PackageLoader("jupyterhub_gpu_reclaim", "service/web/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["text"] = text
    return environment


class HtmlErrors(Route):
    """A handler that answers with pages, also when something is wrong."""

    def set_default_headers(self) -> None:
        """Allow only our own scripts and styles, and forms to us or to the Hub."""
        super().set_default_headers()
        self.set_header("Content-Type", "text/html; charset=utf-8")
        host = self.context.hub_host
        self.set_header(
            "Content-Security-Policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; "
            f"img-src 'self' {host}; connect-src 'self'; base-uri 'none'; "
            f"form-action 'self' {host}; frame-ancestors 'none'; {SANDBOX}",
        )

    def page(self, name: str, **values: Any) -> None:
        context = self.context
        text = context.templates.get_template(name).render(
            prefix=context.prefix,
            hub=context.hub_host + context.hub_prefix,
            announcement=context.announcement,
            person=getattr(self, "person", None),
            theme=self.theme(),
            **values,
        )
        self.finish(text)

    def theme(self) -> str:
        """The chosen colours: light, dark, or empty for what the browser prefers."""
        chosen = self.get_cookie(THEME_COOKIE, "")
        return chosen if chosen in {"light", "dark"} else ""

    @property
    def for_script(self) -> bool:
        """Whether a script of ours asks, which shows the answer by itself."""
        return "application/json" in self.request.headers.get("Accept", "")

    def write_failure(self, failure: Failure) -> None:
        if self.for_script:
            super().write_failure(failure)
            return
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.page("failure.html", failure=failure)


class Page(PersonRoute, HtmlErrors):
    """A page with a login; a visit without one is redirected to it."""

    is_page: ClassVar = True

    async def prepare(self) -> None:
        try:
            await super().prepare()
        except Unauthenticated:
            if not self.is_visit():
                raise
            self.redirect(self.get_login_url())

    def cards(self, views: Sequence[SessionView]) -> list[SimpleNamespace]:
        """Sessions as the templates print them."""
        control, now = self.context.control, self.context.clock.now()
        manages, held = self.person.manages, no_return(self.context.nodes())
        hub = self.context.hub_host + self.context.hub_prefix
        return [
            card(
                view,
                held=held,
                now=now,
                user_prefix=hub.removesuffix("hub/"),
                manages=manages,
                longest_keep=control.users.longest_keep(manages=manages),
            )
            for view in views
        ]

    def start_url(self, key: SessionKey) -> str:
        path = quote(key.user, safe="")
        if key.server:
            path += "/" + quote(key.server, safe="")
        return f"{self.context.hub_host}{self.context.hub_prefix}spawn/{path}"

    def done(self) -> str:
        return TOLD.get(self.get_query_argument("done", ""), "")

    def xsrf(self) -> str:
        """The proof that the page's forms and scripts send back (``api/visits.py``)."""
        logins: PageLogins = self.settings["page_logins"]
        return logins.proof(self._login) if self._login is not None else ""


class Mine(Page):
    async def get(self) -> None:
        name = self.person.name if self.person.is_user else None
        mine = [v for v in self.context.control.users.sessions() if v.key.user == name]
        mine.sort(key=lambda view: view.key)
        cards = self.cards(mine)
        self.page("sessions.html", mine=cards, done=self.done(), xsrf=self.xsrf())


class Index(Mine):
    """The page of arrival: managers' overview, or a user's own sessions."""

    async def get(self) -> None:
        if self.person.manages:
            self.redirect(f"{self.context.prefix}all")
        else:
            await super().get()


class SessionPage(Page):
    async def get(self, user: str, server: str) -> None:
        control, key = self.context.control, self.key(user, server)
        (shown,) = self.cards([control.users.session(key)])
        now = self.context.clock.now()
        since = await self.seen_since(user)
        log = [
            (ago(one.at, now), one.sentence)
            for one in control.users.audit(key, _LOG_LINES)
            if one.at >= since
        ]
        self.page(
            "session.html",
            card=shown,
            why=control.users.why(key),
            log=log,
            done=self.done(),
            xsrf=self.xsrf(),
        )


class Log(Page):
    """The history of all sessions of a user, the deleted ones included.

    Managers see that of all users together, unless they name one.
    """

    async def get(self) -> None:
        """Show one page of the history.

        Raises:
            NotFound: another user.
        """
        mine = "" if self.person.manages else self.person.name
        user = self.get_query_argument("user", "") or mine
        if not self.person.may_see(SessionKey(user)):
            raise NotFound(Reason.UNKNOWN_SESSION, session=user)
        now = self.context.clock.now()
        users, before = self.context.control.users, self.number("before")
        since = await self.seen_since(user)
        found = users.audit(user or None, _LOG_LINES + 1, before)
        found = [line for line in found if line.at >= since]
        lines = [(ago(line.at, now), line) for line in found[:_LOG_LINES]]
        older = lines[-1][1].id if found[_LOG_LINES:] else None
        self.page("log.html", user=user, lines=lines, older=older)


class OAuthCallback(HubOAuthCallbackHandler, HtmlErrors):
    """The Hub's answer to a login; sets the cookie and goes on."""

    async def prepare(self) -> None:
        """Reject a login that a script or a frame has begun.

        Raises:
            Forbidden: it was not a visit.
        """
        says_purpose = is_told(self.request.headers)
        if says_purpose and not is_visit(self.request.headers):
            raise Forbidden(Reason.FORBIDDEN)


class NoPage(NothingHere, HtmlErrors):
    """The page at an address where there is none."""


class Static(StaticFileHandler):
    """Scripts and styles: validated each time, so that versions never mix."""

    def validate_absolute_path(self, root: str, absolute_path: str) -> str | None:
        """The file that is asked for.

        Raises:
            HTTPError: 404: no file can have that name.
        """
        if "\0" in absolute_path:
            raise HTTPError(404)
        return super().validate_absolute_path(root, absolute_path)

    def set_extra_headers(self, path: str) -> None:
        """Let browsers use a copy only after checking that it is current."""
        del path
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", "default-src 'none'; sandbox")
        # our pages have an origin of their own, and modules are asked for as across one
        self.set_header("Access-Control-Allow-Origin", "*")


class Orders(Route):
    """The registry of orders, for the scripts of all pages: a module of its own."""

    async def get(self) -> None:
        self.set_header("Content-Type", "text/javascript")
        self.set_header("Access-Control-Allow-Origin", "*")
        self.finish(ORDERS_SCRIPT)


ORDERS_SCRIPT = b"export const ORDERS = %b;\n" % codec.encode(
    {
        each.kind: {
            "label": each.label,
            "phases": each.phases,
            "done": each.done,
            "many": each.many,
            "beside": each.beside,
            "cures": [one.value for one in each.cures],
            "stops": each.stops,
            "body": each.shown("default"),
        }
        for each in ORDERS
    }
)
#: A session's pages: its key, as two segments.
SESSION_PATH = "sessions/([^/]+)/([^/]+)"
#: Scripts and styles, which need nothing of the service.
STATIC_FILES = {"path": str(files("jupyterhub_gpu_reclaim") / "service/web/static")}
SCRIPTS = (("static/orders.js", Orders), ("static/(.+)", Static, STATIC_FILES))
ROUTES = (
    ("", Index),
    ("mine", Mine),
    ("log", Log),
    (SESSION_PATH, SessionPage),
    ("oauth_callback", OAuthCallback),
    *SCRIPTS,
)

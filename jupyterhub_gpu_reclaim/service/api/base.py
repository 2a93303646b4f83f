"""The base of all routes: errors as JSON, safe headers, bodies, and the caller.

Every handler of the API derives from :class:`Route`. Nothing here knows more of a
session than its user.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec
from jupyterhub.services.auth import HubOAuthenticated, UserNotAllowed
from tornado.web import HTTPError, RequestHandler

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.auth import tab_tokens
from jupyterhub_gpu_reclaim.common.auth.principals import Principal, of_service, of_user
from jupyterhub_gpu_reclaim.common.auth.scopes import MANAGE, STOPS_ALL
from jupyterhub_gpu_reclaim.common.errors import (
    BadRequest,
    NotFound,
    ReclaimError,
    Refused,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import Failure, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api import visits
from jupyterhub_gpu_reclaim.service.api.context import TooMany
from jupyterhub_gpu_reclaim.service.api.openapi import operations
from jupyterhub_gpu_reclaim.service.api.visits import Login

if TYPE_CHECKING:
    from types import TracebackType

    from jupyterhub_gpu_reclaim.service.api.context import Context

T = TypeVar("T")
log = logging.getLogger(__name__)

#: The header that a page's scripts send its proof in; its forms have a field.
PROOF = "X-XSRFToken"
#: Seconds for the Hub to say whose a login is. Its own client would wait five minutes.
LOGIN_LIMIT = 15.0
#: A whole number in a query string.
Count = Annotated[int, msgspec.Meta(ge=0, lt=10**15)]


class Unauthenticated(Refused):
    status = 401


class Forbidden(Refused):
    status = 403


@dataclass(frozen=True)
class Person:
    """The caller: a user or a service of the Hub, and what they may see."""

    name: str
    is_user: bool
    manages: bool
    #: Path of the only session that this call may be about: an open tab's own.
    only: str | None = None

    def may_see(self, key: SessionKey) -> bool:
        """Whether that session is the caller's own, or they may see all."""
        if self.only is not None and key.path != self.only:
            return False
        return self.manages or (self.is_user and key.user == self.name)

    @property
    def label(self) -> Principal:
        return of_user(self.name) if self.is_user else of_service(self.name)


class Route(RequestHandler):
    """A handler whose errors are ours, as JSON, and never a traceback."""

    path: ClassVar[str] = ""

    @property
    def context(self) -> Context:
        context: Context = self.settings["context"]
        return context

    def set_default_headers(self) -> None:
        """Forbid caching, sniffing, framing, referrers and reading by other pages.

        The ``sandbox`` gives every answer an origin of its own: a page of a user's
        server, which has ours if the Hub has no subdomains, cannot read it through a
        frame or a window.
        """
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("X-Frame-Options", "DENY")
        self.set_header("Cross-Origin-Opener-Policy", "same-origin")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header(
            "Content-Security-Policy",
            "default-src 'none'; frame-ancestors 'none'; sandbox",
        )
        self.clear_header("Server")

    def answer(self, value: Any, status: int = 200) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(codec.encode(value))

    def no_content(self, status: int = 204) -> None:
        self.set_status(status)
        self.clear_header("Content-Type")
        self.finish()

    def body(self, kind: type[T]) -> T:
        """The request's JSON as that type; ``BadRequest`` names the invalid field."""
        return codec.decode(self.request.body, kind)

    def number(self, name: str, default: int = 0) -> int:
        """A whole number of the query string, not negative."""
        text = self.get_query_argument(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            what = f"The parameter '{name}' must be a whole number, 0 or more."
            raise BadRequest(Reason.INVALID, what=what)
        return int(text)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        failure, status = told(error, status_code)
        self.set_status(status)
        if status == 405:
            self.set_header(
                "Allow", ", ".join(sorted(map(str.upper, operations(type(self)))))
            )
        elif status == 401:
            self.set_header("WWW-Authenticate", 'Bearer realm="jupyterhub"')
        self.write_failure(failure)

    def write_failure(self, failure: Failure) -> None:
        """End the answer with a failure; the status is set."""
        self.set_header("Content-Type", "application/json")
        self.finish(codec.encode(failure))

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log expected errors in one line, only unexpected ones with a traceback."""
        if isinstance(value, ReclaimError | HTTPError):
            log.info("%s %s: %s", self.request.method, self.request.path, value)
            return
        log.error(
            "%s %s failed",
            self.request.method,
            self.request.path,
            exc_info=(typ, value, tb) if typ and value else None,
        )


def told(error: BaseException | None, status: int) -> tuple[Failure, int]:
    """Translate an exception into a failure for the caller, and the HTTP status."""
    if isinstance(error, ReclaimError):
        return codec.failure_of(error), error.status
    if status == 404:
        what = "There is nothing at this address."
    elif status < 500:
        what = f"{HTTPStatus(status).phrase}."
    else:
        return codec.failure_of(ReclaimError(Reason.INTERNAL)), status
    return codec.failure_of(BadRequest(Reason.INVALID, what=what)), status


class NothingHere(Route):
    async def prepare(self) -> None:
        raise HTTPError(404)


class SpawnerRoute(Route):
    """A call of the spawner in the Hub's process, by the socket that is its alone."""

    async def prepare(self) -> None:
        """Answer 404 to callers by TCP.

        Raises:
            HTTPError: 404.
        """
        connection: Any = self.request.connection
        if connection.context.address_family != socket.AF_UNIX:
            raise HTTPError(404)


class PersonRoute(HubOAuthenticated, Route):
    """A call of a person or a program with a login of the Hub.

    A login counts in three ways: as a token in the ``Authorization`` header; as the
    proof in a page of ours, sent by its scripts and forms (``visits.py``); and, for
    pages alone, as the cookie of a browser that opens one. An open tab of JupyterLab
    sends its tab token, and may do less then: see ``common/auth/tab_tokens.py``.
    """

    #: Whether an open tab may ask this for its own session.
    for_tabs: ClassVar[bool] = False
    #: Whether this is a page, which a browser opens with its cookie alone.
    is_page: ClassVar[bool] = False

    person: Person
    _login: Login | None = None

    async def prepare(self) -> None:
        if not self.is_preflight():
            self.person = await self.identify(allowed_only=True)

    def set_default_headers(self) -> None:
        """Allow our own pages to read it: their sandbox gives them the origin ``null``.

        No cookies are sent from there, and other pages with that origin know no proof.
        """
        super().set_default_headers()
        if self.request.headers.get("Origin") == "null":
            self.set_header("Access-Control-Allow-Origin", "null")
            self.set_header("Vary", "Origin")

    def is_preflight(self) -> bool:
        """Whether this is a browser's CORS preflight for a page of ours; answers it."""
        asked = self.request.headers.get("Access-Control-Request-Method")
        if self.request.method != "OPTIONS" or not asked:
            return False
        self.set_header("Access-Control-Allow-Headers", PROOF)
        self.set_header("Access-Control-Allow-Methods", "GET, POST, DELETE")
        self.set_header("Access-Control-Max-Age", "600")
        self.no_content()
        return True

    async def identify(self, *, allowed_only: bool) -> Person:
        """Identify the caller.

        Raises:
            Unauthenticated: unknown to the Hub, or a cookie where none counts.
            Forbidden: no access to this service, or a tab without the right.
            Unreachable: the Hub does not answer.
        """
        tab = self.request.headers.get(tab_tokens.HEADER)
        if tab is not None:
            return await self._of_tab(tab)
        model = await self._model()
        if not model:
            sent = self.hub_auth.get_token(self, in_cookie=False)
            raise Unauthenticated(
                Reason.TOKEN_UNKNOWN if sent else Reason.UNAUTHENTICATED
            )
        if allowed_only:
            try:
                model = self.check_hub_user(model)
            except UserNotAllowed as error:
                raise Forbidden(Reason.FORBIDDEN) from error
        self.current_user = model
        holds = self.hub_auth.check_scopes
        is_user = model.get("kind", "user") == "user"
        return Person(
            name=model["name"],
            is_user=is_user,
            # A culler that stops servers is no manager.
            manages=bool(holds({MANAGE, STOPS_ALL} if is_user else {MANAGE}, model)),
        )

    async def _of_tab(self, given: str) -> Person:
        now = self.context.clock.now()
        shown = tab_tokens.read(self.context.spawner_token, given, now)
        if shown is None or shown.since < await self.context.created(shown.key.user):
            raise Unauthenticated(Reason.UNAUTHENTICATED)
        if not self.for_tabs:
            raise Forbidden(Reason.FORBIDDEN)
        key = shown.key
        if not self.context.control.users.tab_counts(key, shown.session):
            raise Forbidden(Reason.TAB_KEY_OVER)
        return Person(name=key.user, is_user=True, manages=False, only=key.path)

    async def seen_since(self, user: str) -> float:
        """The time since which the caller may see the history of a user's sessions.

        Managers see all of it. A user sees nothing of a former user of the same name.
        """
        return 0.0 if self.person.manages else await self.context.created(user)

    async def _model(self) -> dict[str, Any] | None:
        auth = self.hub_auth
        token = auth.get_token(self, in_cookie=False)
        self._login = Login(token, "") if token else self._sent_login()
        if self._login is None:
            return None
        try:
            async with asyncio.timeout(LOGIN_LIMIT):
                model: dict[str, Any] | None = await auth.user_for_token(
                    self._login.token, session_id=self._login.session_id, sync=False
                )
        except TimeoutError:
            detail = f"no answer within {LOGIN_LIMIT:g} s"
            raise Unreachable(Reason.HUB_UNREACHABLE, detail=detail) from None
        except HTTPError as error:
            raise Unreachable(
                Reason.HUB_UNREACHABLE, detail=error.log_message or ""
            ) from error
        return model

    def _sent_login(self) -> Login | None:
        """The login behind a page's proof; or that of a browser that opens a page.

        Raises:
            Forbidden: the browser does not say whether it opens a page, or it sends the
                cookie twice, one of which another page on the same host has set.
        """
        proof = self.request.headers.get(PROOF) or self.get_body_argument("_xsrf", "")
        if proof:
            logins: visits.PageLogins = self.settings["page_logins"]
            return logins.login(proof)
        if not self.is_visit():
            return None
        name = self.hub_auth.cookie_name
        if visits.times_sent(self.request.headers, name) > 1:
            raise Forbidden(Reason.TWO_LOGINS)
        token = self.hub_auth._get_token_cookie(self)  # noqa: SLF001 - no other way
        return Login(token, self.hub_auth.get_session_id(self)) if token else None

    def is_visit(self) -> bool:
        """Whether a browser opens this as a page, so that its cookie counts.

        Raises:
            Forbidden: it is a page, and the browser does not say how it was opened.
        """
        if not self.is_page or self.request.method not in {"GET", "HEAD"}:
            return False
        if visits.is_told(self.request.headers):
            return visits.is_visit(self.request.headers)
        if not self.context.trust_plain_http:
            raise Forbidden(Reason.PLAIN_HTTP)
        return True

    def key(self, user: str, server: str) -> SessionKey:
        """The session in the path.

        Raises:
            NotFound: it is another user's; the same words as for a missing one.
            TooMany: it is to be changed, and was too often lately.
        """
        key = SessionKey.of_path(user, server)
        if not self.person.may_see(key):
            raise NotFound(Reason.UNKNOWN_SESSION, session=key)
        if self.request.method not in {"GET", "HEAD"}:
            changed = (self.person.label, key)
            if not self.context.changes.lets(changed, self.context.clock.now()):
                raise TooMany(Reason.TOO_OFTEN)
        return key


class ManagerRoute(PersonRoute):
    async def prepare(self) -> None:
        """Let managers in.

        Raises:
            Forbidden: it covers all users' sessions.
        """
        await super().prepare()
        if not self._finished and not self.person.manages:
            raise Forbidden(Reason.FORBIDDEN)

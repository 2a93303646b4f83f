"""What all routes share: errors as JSON, safe headers, bodies, and who is asking.

Every handler of the service derives from :class:`Route`. Nothing here knows what a
session is beyond whose it is.
"""

from __future__ import annotations

import hmac
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec
from jupyterhub.services.auth import HubOAuthenticated, UserNotAllowed
from tornado.web import HTTPError, RequestHandler

from jupyterhub_gpu_reclaim import wire
from jupyterhub_gpu_reclaim.errors import (
    BadRequest,
    NotFound,
    ReclaimError,
    Refused,
    Unreachable,
)
from jupyterhub_gpu_reclaim.events.log import Refusal
from jupyterhub_gpu_reclaim.models import Failure, SessionKey
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.service import passes
from jupyterhub_gpu_reclaim.service.openapi import operations
from jupyterhub_gpu_reclaim.service.scopes import MANAGE, METRICS

if TYPE_CHECKING:
    from types import TracebackType

    from jupyterhub_gpu_reclaim.service.context import Context

T = TypeVar("T")
log = logging.getLogger(__name__)

#: A whole number in a query string.
Count = Annotated[int, msgspec.Meta(ge=0, lt=10**15)]


class Unauthenticated(Refused):
    """Nobody whom we know is asking."""

    status = 401


class Forbidden(Refused):
    """We know who is asking, and they may not."""

    status = 403


@dataclass(frozen=True)
class Person:
    """Who asks: a user or a service of the Hub, and what they may see."""

    name: str
    is_user: bool
    manages: bool
    scrapes: bool
    #: Path of the only session that this call may be about: an open tab's own.
    only: str | None = None

    def may_see(self, key: SessionKey) -> bool:
        """Whether that session is theirs, or all are."""
        if self.only is not None and key.path != self.only:
            return False
        return self.manages or (self.is_user and key.user == self.name)

    @property
    def label(self) -> str:
        """Their name for the audit and for reasons."""
        return self.name if self.is_user else f"service {self.name}"


class Route(RequestHandler):
    """A handler whose errors are ours, as JSON, and never a traceback."""

    path: ClassVar[str] = ""

    @property
    def context(self) -> Context:
        """The parts that the application has wired."""
        context: Context = self.settings["context"]
        return context

    def set_default_headers(self) -> None:
        """Nothing is cached, sniffed, framed or told to others."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header(
            "Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"
        )
        self.clear_header("Server")

    def answer(self, value: Any, status: int = 200) -> None:
        """Answer with a value as JSON."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(wire.encode(value))

    def no_content(self) -> None:
        """Answer 204."""
        self.set_status(204)
        self.clear_header("Content-Type")
        self.finish()

    def body(self, kind: type[T]) -> T:
        """The request's JSON as that type; ``BadRequest`` names what is off."""
        return wire.decode(self.request.body, kind)

    def number(self, name: str, default: int = 0) -> int:
        """A whole number of the query string, not negative."""
        text = self.get_query_argument(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            what = f"The parameter '{name}' must be a whole number, 0 or more."
            raise BadRequest(Reason.INVALID, what=what)
        return int(text)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Any error as a Failure with its own status."""
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        failure, status = told(error, status_code)
        self.set_status(status)
        if status == 405:
            self.set_header("Allow", ", ".join(allowed_methods(type(self))))
        elif status == 401:
            self.set_header("WWW-Authenticate", 'Bearer realm="jupyterhub"')
        self.write_failure(failure)

    def write_failure(self, failure: Failure) -> None:
        """End the answer with a failure; the status is set."""
        self.set_header("Content-Type", "application/json")
        self.finish(wire.encode(failure))

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Expected errors in one line; only surprises with their traceback."""
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
    """An exception as callers are told of it, and the HTTP status."""
    if isinstance(error, ReclaimError):
        return wire.failure_of(error), error.status
    if status == 404:
        what = "There is nothing at this address."
    elif status < 500:
        what = f"{HTTPStatus(status).phrase}."
    else:
        return wire.failure_of(ReclaimError(Reason.INTERNAL)), status
    return wire.failure_of(BadRequest(Reason.INVALID, what=what)), status


def allowed_methods(route: type[Route]) -> list[str]:
    """The HTTP methods that a route has."""
    return sorted(method.upper() for method in operations(route))


class NothingHere(Route):
    """Any address that no route has."""

    async def prepare(self) -> None:
        """Say so."""
        raise HTTPError(404)


class SpawnerRoute(Route):
    """A call that only the spawner in the Hub's process may make."""

    async def prepare(self) -> None:
        """Compare the token in constant time."""
        kind, _, token = self.request.headers.get("Authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "replace")
        if kind.lower() not in ("token", "bearer") or not hmac.compare_digest(
            given, self.context.spawner_token
        ):
            raise Unauthenticated(Reason.UNAUTHENTICATED)


class PersonRoute(HubOAuthenticated, Route):
    """A call of a person or a program with a login of the Hub.

    A cookie counts only with its XSRF token where something is changed; a token in
    the ``Authorization`` header needs none. An open tab sends its pass in place of
    the XSRF token, and may do less then: see ``passes.py``.
    """

    #: Whether an open tab may ask this for its own session.
    for_tabs: ClassVar[bool] = False

    person: Person

    async def prepare(self) -> None:
        """Find out who asks, without ever blocking the event loop."""
        self.person = await self.identify(allowed_only=True)

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """As ever; and the event log is told who was refused a change."""
        super().log_exception(typ, value, tb)
        tell = self.context.refused
        if tell is None or self.request.method in {"GET", "HEAD"} or value is None:
            return
        status = value.status_code if isinstance(value, HTTPError) else 500
        failure, status = told(value, status)
        if status < 500:
            person = getattr(self, "person", None)
            tell(
                Refusal(
                    at=self.context.clock.now(),
                    by=person.label if person is not None else "",
                    method=self.request.method or "",
                    path=self.request.path,
                    status=status,
                    code=failure.code,
                    message=failure.message,
                )
            )

    def check_xsrf_cookie(self) -> None:
        """A pass that is good stands for the XSRF token."""
        if self._tab() is None:
            super().check_xsrf_cookie()

    def _tab(self) -> str | None:
        """The session of the tab that asks; None where no tab does.

        Raises:
            Unauthenticated: its pass is none, or none any more.
        """
        given = self.request.headers.get(passes.HEADER)
        if given is None:
            return None
        found = passes.read(self.settings["cookie_secret"], given)
        if found is None:
            raise Unauthenticated(Reason.UNAUTHENTICATED)
        return found

    async def identify(self, *, allowed_only: bool) -> Person:
        """Who asks.

        Raises:
            Unauthenticated: nobody the Hub knows, or a cookie without its XSRF token.
            Forbidden: somebody without access to this service, or a tab.
            Unreachable: the Hub does not answer.
        """
        only = self._tab()
        if only is not None and not self.for_tabs:
            raise Forbidden(Reason.FORBIDDEN)
        try:
            model = await self.hub_auth.get_user(self, sync=False)
        except HTTPError as error:
            raise Unreachable(
                Reason.HUB_UNREACHABLE, detail=error.log_message or ""
            ) from error
        if not model:
            raise Unauthenticated(Reason.UNAUTHENTICATED)
        if allowed_only:
            try:
                model = self.check_hub_user(model)
            except UserNotAllowed as error:
                raise Forbidden(Reason.FORBIDDEN) from error
        self.current_user = model
        holds = self.hub_auth.check_scopes
        return Person(
            name=model["name"],
            is_user=model.get("kind", "user") == "user",
            manages=only is None and bool(holds({MANAGE}, model)),
            scrapes=bool(holds({METRICS}, model)),
            only=only,
        )

    def key(self, user: str, server: str) -> SessionKey:
        """The session that the path names.

        Raises:
            NotFound: it is somebody else's; the same words as for none at all.
        """
        key = SessionKey.of_path(user, server)
        if not self.person.may_see(key):
            raise NotFound(Reason.UNKNOWN_SESSION, session=key)
        return key

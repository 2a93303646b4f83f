"""The agent's HTTP interface, exactly as ``docs/explanation/architecture.md`` lists it.

Every call but ``/healthz`` and ``/readyz`` needs the bearer token; a caller without it
never learns what exists. A handler reads the request, calls the :class:`LocalNode`, and
writes the answer; it decides nothing.
"""

from __future__ import annotations

import hmac
import logging
import re
from typing import TYPE_CHECKING, Any

from tornado.iostream import StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.agent_orders import AGENT_ORDERS, AgentOrder, PodHint
from jupyterhub_gpu_reclaim.common.bounds import IDENTIFIER
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.term import TERM, Term

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.models import Event
    from jupyterhub_gpu_reclaim.node.local_node import LocalNode

_log = logging.getLogger(__name__)

_REASONS = {401: Reason.FORBIDDEN, 404: Reason.INVALID, 405: Reason.INVALID}


class Handler(RequestHandler):
    node: LocalNode

    def initialize(self, node: LocalNode, token: str) -> None:
        self.node = node
        self._token = token.encode()

    async def prepare(self) -> None:
        """Refuse a caller without the token, who learns of nothing that exists.

        Raises:
            Refused: ``former_service``.
        """
        scheme, _, given = self.request.headers.get("Authorization", "").partition(" ")
        shown = given.strip().encode("utf-8", "replace")
        same = hmac.compare_digest(shown, self._token)
        if not same or scheme.lower() not in {"bearer", "token"}:
            self.set_header("WWW-Authenticate", "Bearer")
            raise HTTPError(401)
        term = Term.of_header(self.request.headers.get(TERM, ""))
        # What is more than a look.
        await self.node.term.hear(term, order=self.request.method != "GET")

    def set_default_headers(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.clear_header("Server")

    def answer(self, value: Any, status: int = 200) -> None:
        self.set_status(status)
        self.finish(codec.encode(value))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, ReclaimError):
            _log.info("%s %s: %s", self.request.method, self.request.path, error)
            self.answer(codec.failure_of(error), error.status)
            return
        reason = _REASONS.get(status_code, Reason.INTERNAL)
        failed = ReclaimError(reason, what=f"{status_code} {self._reason}.")
        self.answer(codec.failure_of(failed), status_code)

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, ReclaimError):
            super().log_exception(typ, value, tb)

    async def stream(self, events: AsyncIterator[Event]) -> None:
        """Newline-delimited JSON, each line flushed; a reader may leave."""
        self.set_header("Content-Type", "application/x-ndjson")
        try:
            async for event in events:
                self.write(codec.encode(event) + b"\n")
                await self.flush()
        except StreamClosedError:
            return
        self.finish()


#: No call of ours carries more than a few names.
MAX_BODY_BYTES = 64 * 1024


class GetHealth(Handler):
    """``GET /healthz``: alive. The kubelet, which has no token, hears no more."""

    async def prepare(self) -> None:
        """Allow it without a token."""

    def get(self) -> None:
        self.answer({})


class GetReadiness(GetHealth):
    """``GET /readyz``: whether this node can save sessions; its status says why."""

    async def get(self) -> None:  # type: ignore[override]
        ready = await self.node.ready()
        self.answer({"ready": ready}, 200 if ready else 503)


class GetAnswer(Handler):
    what: str  #: a method of the node

    async def get(self, *subject: str) -> None:
        self.answer(await getattr(self.node, self.what)(*subject))


class GetSession(Handler):
    """``GET /v1/sessions/{incarnation}``; in Kubernetes ``?pod=`` says where it is."""

    async def get(self, incarnation: str) -> None:
        pod = self.get_query_argument("pod", "")
        await self.node.set_hint(incarnation, PodHint(pod=pod))
        self.answer(await self.node.tree(incarnation))


class PostOrder(Handler):
    """``POST /v1/{about}/{subject}/{kind}``: an order of ``common/agent_orders.py``."""

    kind: type[AgentOrder]

    async def post(self, subject: str) -> None:
        order = codec.decode(self.request.body or b"{}", self.kind)
        events = await self.node.carry_out(subject, order)
        if events is not None:
            await self.stream(events)
        else:
            self.set_status(204)


class NoSuchPath(Handler):
    async def prepare(self) -> None:
        """After the token check there is nothing here.

        Raises:
            BadRequest: ``other_version``.
        """
        await super().prepare()
        if version := re.match("/v([0-9]{1,9})/", self.request.path):
            codec.check_version(int(version[1]), "The service's request")
        raise HTTPError(404)


def make_application(node: LocalNode, token: str) -> Application:
    """The calls, bound to that node."""
    name = f"({IDENTIFIER.pattern})"
    bound = {"node": node, "token": token}
    routes: list[tuple[str, type[Handler]]] = [
        ("/healthz", GetHealth),
        ("/readyz", GetReadiness),
        ("/v1/status", _answer("status")),
        ("/v1/sessions", _answer("trees")),
        (f"/v1/sessions/{name}", GetSession),
        ("/v1/samples", _answer("samples")),
        ("/v1/checkpoints", _answer("checkpoints")),
        (f"/v1/checkpoints/{name}/identity", _answer("identity")),
    ]
    for each in AGENT_ORDERS:
        handler = type(each.__name__, (PostOrder,), {"kind": each})
        routes.append((f"/v1/{each.about}/{name}/{each.kind}", handler))
    return Application(
        [(path, handler, bound) for path, handler in routes],
        default_handler_class=NoSuchPath,
        default_handler_args=bound,
        log_function=_log_request,
    )


def _answer(what: str) -> type[Handler]:
    return type(what, (GetAnswer,), {"what": what})


def _log_request(handler: RequestHandler) -> None:
    """Log what went wrong, and nothing of what is asked every ten seconds."""
    status = handler.get_status()
    if isinstance(handler, GetReadiness):
        return  # the node says once why it is not ready
    if status >= 500 or status in {401, 403}:
        _log.warning(
            "%s %s from %s answered %d",
            handler.request.method,
            handler.request.path,
            handler.request.remote_ip or "the socket",
            status,
        )

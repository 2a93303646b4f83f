"""The agent's HTTP calls, exactly those of ``docs/explanation/architecture.md``.

Made by the agent's app; asked by the service alone. Every call but ``/healthz`` needs
the bearer token. It decides nothing: it reads the request, asks :class:`Node`, and
writes the answer; an error is a ``models.Failure`` with the status of its class.
"""

from __future__ import annotations

import hmac
import logging
import re
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tornado.iostream import StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler

from jupyterhub_gpu_reclaim import __version__, wire
from jupyterhub_gpu_reclaim.errors import ReclaimError
from jupyterhub_gpu_reclaim.models import (
    CheckpointInfo,
    Event,
    Failure,
    Finding,
    Identifier,
    Identity,
    Sample,
    Tree,
    Value,
)
from jupyterhub_gpu_reclaim.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: No call of ours carries more than a few names.
MAX_BODY_BYTES = 64 * 1024
_IDENTIFIER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class CaptureOrder(Value, frozen=True, kw_only=True):
    """Body of ``capture``."""

    checkpoint: Identifier
    generation: int = 1


class CheckpointOrder(Value, frozen=True, kw_only=True):
    """Body of ``restore`` and ``release``."""

    checkpoint: Identifier


class Node(Protocol):
    """What the calls ask of this node; every method raises only ``ReclaimError``."""

    async def ready(self) -> list[Finding]:
        """What keeps this node from saving sessions; empty when nothing does."""

    async def trees(self) -> list[Tree]:
        """Every incarnation with an init or a record here."""

    async def tree(self, incarnation: str) -> Tree:
        """That incarnation, or ``NotFound``."""

    async def samples(self) -> list[Sample]:
        """What every session does now."""

    async def preflight(self, incarnation: str) -> list[Finding]:
        """What keeps that session from being saved; touches nothing."""

    async def capture(
        self, incarnation: str, checkpoint: str, generation: int
    ) -> AsyncIterator[Event]:
        """Save it, or attach to the capture under way."""

    async def restore(self, incarnation: str, checkpoint: str) -> AsyncIterator[Event]:
        """Bring it back under a holding init, or attach to that."""

    async def thaw(self, incarnation: str) -> Tree:
        """Let a captured tree go on; its checkpoint is discarded."""

    async def release(self, incarnation: str, checkpoint: str) -> Tree:
        """End a captured tree; only when that checkpoint is committed."""

    async def kill(self, incarnation: str) -> Tree:
        """End a tree whatever it does, but not during a capture."""

    async def cancel(self, incarnation: str) -> None:
        """Call a running capture off."""

    async def checkpoints(self) -> list[CheckpointInfo]:
        """The committed checkpoints."""

    async def identity(self, checkpoint: str) -> Identity:
        """The login of a saved session."""

    async def discard(self, checkpoint: str) -> None:
        """Delete a checkpoint; idempotent."""


class Handler(RequestHandler):
    """What all calls share: the token check, JSON both ways, errors as ``Failure``."""

    node: Node
    _token: bytes

    def initialize(self, node: Node, token: str) -> None:
        """Take what the application was made with."""
        self.node = node
        self._token = token.encode()

    def prepare(self) -> None:
        """Nobody without the token gets any further.

        Raises:
            HTTPError: 401; nothing is told about what exists.
        """
        scheme, _, given = self.request.headers.get("Authorization", "").partition(" ")
        same = hmac.compare_digest(
            given.strip().encode("utf-8", "replace"), self._token
        )
        if scheme.lower() not in {"bearer", "token"} or not same:
            self.set_header("WWW-Authenticate", "Bearer")
            raise HTTPError(401)

    def set_default_headers(self) -> None:
        """JSON, never cached, and no word about the server's version."""
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.clear_header("Server")

    def answer(self, value: Any, status: int = 200) -> None:
        """Write one value and end."""
        self.set_status(status)
        self.finish(wire.encode(value))

    def body(self, kind: type[T]) -> T:
        """The request's body as that value.

        Raises:
            BadRequest: it is not JSON or does not fit.
        """
        return wire.decode(self.request.body or b"{}", kind)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Errors as ``Failure``; the traceback goes to the log alone."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, ReclaimError):
            _log.info("%s %s: %s", self.request.method, self.request.path, error)
            self.answer(wire.failure_of(error), error.status)
            return
        reason = _REASONS.get(status_code, Reason.INTERNAL)
        what = f"{status_code} {self._reason}."
        self.answer(
            Failure(
                code=reason.value,
                message=reason.sentence(what=what),
                hint=reason.hint,
                retryable=reason.retryable,
            ),
            status_code,
        )

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Our own errors are answers, not accidents."""
        if not isinstance(value, ReclaimError):
            super().log_exception(typ, value, tb)

    async def stream(self, events: AsyncIterator[Event]) -> None:
        """Newline-delimited JSON, each line flushed; a reader may leave."""
        self.set_header("Content-Type", "application/x-ndjson")
        try:
            async for event in events:
                self.write(wire.encode(event) + b"\n")
                await self.flush()
        except StreamClosedError:
            return
        self.finish()


_REASONS = {401: Reason.FORBIDDEN, 404: Reason.INVALID, 405: Reason.INVALID}


class Health(Handler):
    """``GET /healthz``: alive; the one call without a token."""

    def prepare(self) -> None:
        """Anybody may ask."""

    def get(self) -> None:
        """Answer with our version."""
        self.answer({"version": __version__})


class Ready(Handler):
    """``GET /readyz``: whether this node can save sessions, and what is missing."""

    async def get(self) -> None:
        """Answer with the node's findings."""
        findings = await self.node.ready()
        ready = not any(finding.fatal for finding in findings)
        self.answer({"ready": ready, "findings": findings})


class Sessions(Handler):
    """``GET /v1/sessions``."""

    async def get(self) -> None:
        """Answer with every tree."""
        self.answer(await self.node.trees())


class Session(Handler):
    """``GET /v1/sessions/{incarnation}``."""

    async def get(self, incarnation: str) -> None:
        """Answer with that tree."""
        self.answer(await self.node.tree(incarnation))


class Samples(Handler):
    """``GET /v1/samples``."""

    async def get(self) -> None:
        """Answer with what every session does."""
        self.answer(await self.node.samples())


class Order(Handler):
    """``POST /v1/sessions/{incarnation}/{order}``."""

    async def post(self, incarnation: str, order: str) -> None:
        """Do as ordered."""
        match order:
            case "preflight":
                self.answer(await self.node.preflight(incarnation))
            case "capture":
                capture = self.body(CaptureOrder)
                events = await self.node.capture(
                    incarnation, capture.checkpoint, capture.generation
                )
                await self.stream(events)
            case "restore":
                restore = self.body(CheckpointOrder)
                await self.stream(
                    await self.node.restore(incarnation, restore.checkpoint)
                )
            case "thaw":
                self.answer(await self.node.thaw(incarnation))
            case "release":
                release = self.body(CheckpointOrder)
                self.answer(await self.node.release(incarnation, release.checkpoint))
            case "kill":
                self.answer(await self.node.kill(incarnation))
            case _:
                await self.node.cancel(incarnation)
                self.answer({}, 202)


class Checkpoints(Handler):
    """``GET /v1/checkpoints``."""

    async def get(self) -> None:
        """Answer with the committed ones."""
        self.answer(await self.node.checkpoints())


class Checkpoint(Handler):
    """``DELETE /v1/checkpoints/{id}``."""

    async def delete(self, checkpoint: str) -> None:
        """Discard it."""
        await self.node.discard(checkpoint)
        self.set_status(204)
        self.finish()


class SavedIdentity(Handler):
    """``GET /v1/checkpoints/{id}/identity``."""

    async def get(self, checkpoint: str) -> None:
        """Answer with the login of the saved session."""
        self.answer(await self.node.identity(checkpoint))


class Nothing(Handler):
    """Every other path, with the same token check."""

    def prepare(self) -> None:
        """After the token check there is nothing here.

        Raises:
            HTTPError: 401 or 404.
        """
        super().prepare()
        raise HTTPError(404)


def make_application(node: Node, token: str) -> Application:
    """The calls, bound to that node.

    Args:
        node: does what the calls ask for.
        token: the bearer token that every call but ``/healthz`` must carry.
    """
    name = f"({_IDENTIFIER.pattern})"
    orders = "(preflight|capture|restore|thaw|release|kill|cancel)"
    bound = {"node": node, "token": token}
    routes: list[tuple[str, type[Handler]]] = [
        ("/healthz", Health),
        ("/readyz", Ready),
        ("/v1/sessions", Sessions),
        (f"/v1/sessions/{name}", Session),
        (f"/v1/sessions/{name}/{orders}", Order),
        ("/v1/samples", Samples),
        ("/v1/checkpoints", Checkpoints),
        (f"/v1/checkpoints/{name}", Checkpoint),
        (f"/v1/checkpoints/{name}/identity", SavedIdentity),
    ]
    return Application(
        [(path, handler, bound) for path, handler in routes],
        default_handler_class=Nothing,
        default_handler_args=bound,
        log_function=_log_request,
    )


def _log_request(handler: RequestHandler) -> None:
    """What went wrong, and nothing of what the service asks every ten seconds."""
    status = handler.get_status()
    if status >= 500 or status in {401, 403}:
        _log.warning(
            "%s %s from %s answered %d",
            handler.request.method,
            handler.request.path,
            handler.request.remote_ip or "the socket",
            status,
        )

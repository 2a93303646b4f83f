"""Base of the agent's HTTP handlers: the token check, JSON, errors and event streams.

:class:`Node` declares the calls that the handlers need. A caller without the token
never learns what exists.
"""

from __future__ import annotations

import hmac
import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.auth.handshake import NONCE, PROOF, Vouching
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import Failure
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        Event,
        Finding,
        Identity,
        Sample,
        Tree,
    )
    from jupyterhub_gpu_reclaim.node.sessions.placements import Told

T = TypeVar("T")

_log = logging.getLogger(__name__)

_REASONS = {401: Reason.FORBIDDEN, 404: Reason.INVALID, 405: Reason.INVALID}


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

    async def tell(self, incarnation: str, told: Told) -> None:
        """Take the service's facts about that incarnation; first of all, or not."""

    async def preflight(self, incarnation: str) -> list[Finding]:
        """What keeps that session from being saved; touches nothing."""

    async def capture(
        self, incarnation: str, checkpoint: str, generation: int
    ) -> AsyncIterator[Event]:
        """Capture it, or attach to the capture under way."""

    async def restore(self, incarnation: str, checkpoint: str) -> AsyncIterator[Event]:
        """Restore it under a holding init, or attach to the restore under way."""

    async def thaw(self, incarnation: str) -> Tree:
        """Thaw a captured tree; its checkpoint is discarded."""

    async def release(self, incarnation: str, checkpoint: str) -> Tree:
        """End a captured tree; only when that checkpoint is committed."""

    async def kill(self, incarnation: str) -> Tree:
        """End a tree whatever it does, but not during a capture."""

    async def cancel(self, incarnation: str) -> None:
        """Cancel a running capture."""

    async def checkpoints(self) -> list[CheckpointInfo]:
        """The committed checkpoints."""

    async def identity(self, checkpoint: str) -> Identity:
        """The login of a saved session."""

    async def discard(self, checkpoint: str) -> None:
        """Delete a checkpoint; idempotent."""


class Handler(RequestHandler):
    """Common to all handlers: the token check, JSON both ways, errors as ``Failure``.

    A caller that sends ``common.auth.handshake.NONCE`` gets each answer with a proof
    that it is the agent's.
    """

    node: Node
    run: str

    def initialize(self, node: Node, token: str, run: str) -> None:
        """Take what the application was made with."""
        self.node = node
        self.run = run
        self._token = token.encode()
        self._vouching = Vouching(self._token)

    def prepare(self) -> None:
        """Refuse a caller without the token.

        Raises:
            HTTPError: 401; nothing about what exists is revealed.
        """
        scheme, _, given = self.request.headers.get("Authorization", "").partition(" ")
        shown = given.strip().encode("utf-8", "replace")
        of_run = self._vouching.token(self.run).encode()
        same = hmac.compare_digest(shown, self._token)
        same |= hmac.compare_digest(shown, of_run)
        if scheme.lower() not in {"bearer", "token"} or not same:
            self.set_header("WWW-Authenticate", "Bearer")
            raise HTTPError(401)

    def set_default_headers(self) -> None:
        """JSON, never cached, without the server's version."""
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.clear_header("Server")

    def answer(self, value: Any, status: int = 200) -> None:
        """Write one value and end."""
        self.set_status(status)
        self.finish(codec.encode(value))

    @property
    def _nonce(self) -> str:
        return str(self.request.headers.get(NONCE, ""))[:200]

    def finish(self, chunk: str | bytes | dict[str, Any] | None = None) -> Any:
        """End the answer, with its proof."""
        if chunk is not None:
            self.write(chunk)
        if self._nonce and not self._headers_written:
            body = b"".join(self._write_buffer)
            proof = self._vouching.proof(self._nonce, self.get_status(), body)
            self.set_header(PROOF, proof)
        return super().finish()

    def body(self, kind: type[T]) -> T:
        """The request's body as that value.

        Raises:
            BadRequest: it is not JSON or does not fit.
        """
        return codec.decode(self.request.body or b"{}", kind)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Errors as ``Failure``; the traceback goes to the log alone."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, ReclaimError):
            _log.info("%s %s: %s", self.request.method, self.request.path, error)
            self.answer(codec.failure_of(error), error.status)
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
        """Log only unexpected errors; our own are answers."""
        if not isinstance(value, ReclaimError):
            super().log_exception(typ, value, tb)

    async def stream(self, events: AsyncIterator[Event]) -> None:
        """Newline-delimited JSON, each line flushed; a reader may leave."""
        self.set_header("Content-Type", "application/x-ndjson")
        number = 0
        try:
            async for event in events:
                line = codec.encode(event)
                if self._nonce:
                    line = self._vouching.sealed(self._nonce, number, line)
                self.write(line + b"\n")
                number += 1
                await self.flush()
        except StreamClosedError:
            return
        self.finish()

"""The agent's HTTP routes, exactly those of ``docs/explanation/architecture.md``.

Every call but ``/healthz``, ``/readyz`` and the greeting needs the bearer token, or its
stand-in of this run (``common/auth/handshake.py``). A handler reads the request, calls
the :class:`Node`, and writes the answer; it decides nothing.
"""

from __future__ import annotations

import logging
import re
from secrets import token_hex
from typing import Any

import msgspec
from tornado.web import Application, HTTPError, RequestHandler

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.common.auth.handshake import Hello
from jupyterhub_gpu_reclaim.common.models import Identifier, SessionKey, Value
from jupyterhub_gpu_reclaim.node.http.handler import Handler, Node
from jupyterhub_gpu_reclaim.node.sessions.placements import Told

_log = logging.getLogger(__name__)

#: No call of ours carries more than a few names.
MAX_BODY_BYTES = 64 * 1024
_IDENTIFIER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class CaptureOrder(Value, frozen=True, kw_only=True):
    """Body of ``capture``; the last three are for sessions in pods."""

    checkpoint: Identifier
    generation: int = 1
    key: SessionKey | None = None
    image: str = ""
    node_labels: dict[str, str] = msgspec.field(default_factory=dict)


class CheckpointOrder(Value, frozen=True, kw_only=True):
    """Body of ``restore`` and ``release``; the last two are for sessions in pods."""

    checkpoint: Identifier
    key: SessionKey | None = None
    image: str = ""


class Health(Handler):
    """``GET /healthz``: alive. No token: the kubelet asks, too."""

    def prepare(self) -> None:
        """Allow it without a token."""

    def get(self) -> None:
        """Answer with our version."""
        self.answer({"version": __version__})


class Ready(Handler):
    """``GET /readyz``: whether this node can save sessions, and what is missing.

    No token, as for ``/healthz``: sentences about the machine, nothing of a session.
    """

    def prepare(self) -> None:
        """Allow it without a token."""

    async def get(self) -> None:
        """Answer with the node's findings; 503 where one of them is fatal."""
        findings = await self.node.ready()
        ready = not any(finding.fatal for finding in findings)
        self.answer({"ready": ready, "findings": findings}, 200 if ready else 503)


class SayHello(Handler):
    """``GET /v1/hello``: the agent proves itself before it is sent anything."""

    def prepare(self) -> None:
        """Allow it without a token."""

    def get(self) -> None:
        """Answer with which run of the agent this is."""
        self.answer(Hello(run=self.run))


class Sessions(Handler):
    """``GET /v1/sessions``."""

    async def get(self) -> None:
        """Answer with every tree."""
        self.answer(await self.node.trees())


class OneSession(Handler):
    """Handlers for one session; in Kubernetes ``?pod=`` says where it lives."""

    async def tell(self, incarnation: str, **more: Any) -> None:
        """Pass on the service's facts about the session, before it is looked up."""
        pod = self.get_query_argument("pod", "")
        await self.node.tell(incarnation, Told(pod=pod, **more))


class Session(OneSession):
    """``GET /v1/sessions/{incarnation}``."""

    async def get(self, incarnation: str) -> None:
        """Answer with that tree."""
        await self.tell(incarnation)
        self.answer(await self.node.tree(incarnation))


class Samples(Handler):
    """``GET /v1/samples``."""

    async def get(self) -> None:
        """Answer with what every session does."""
        self.answer(await self.node.samples())


class Order(OneSession):
    """``POST /v1/sessions/{incarnation}/{order}``."""

    async def post(self, incarnation: str, order: str) -> None:
        """Do as ordered."""
        if order not in {"capture", "restore"}:
            await self.tell(incarnation)
        match order:
            case "preflight":
                self.answer(await self.node.preflight(incarnation))
            case "capture":
                capture = self.body(CaptureOrder)
                await self.tell(
                    incarnation,
                    key=capture.key,
                    image=capture.image,
                    node_labels=capture.node_labels,
                )
                events = await self.node.capture(
                    incarnation, capture.checkpoint, capture.generation
                )
                await self.stream(events)
            case "restore":
                restore = self.body(CheckpointOrder)
                await self.tell(incarnation, key=restore.key, image=restore.image)
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
    """Any other path: 404, after the same token check."""

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
        token: the bearer token that every call but the probes and the greeting must
            carry, or what stands for it in this run.
    """
    name = f"({_IDENTIFIER.pattern})"
    orders = "(preflight|capture|restore|thaw|release|kill|cancel)"
    bound = {"node": node, "token": token, "run": token_hex()}
    routes: list[tuple[str, type[Handler]]] = [
        ("/healthz", Health),
        ("/readyz", Ready),
        ("/v1/hello", SayHello),
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

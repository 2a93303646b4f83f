"""HTTP client of one agent; implements the control plane's ``Agent``.

It decides nothing and retries nothing: no answer in time is
``Unreachable(AGENT_UNREACHABLE)``, and a refusal is raised in the agent's own words.
Calls, repetition and failure are in ``docs/explanation/architecture.md``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest, ReclaimError
from jupyterhub_gpu_reclaim.common.http.client import Answer, Connection
from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    Event,
    Identity,
    Sample,
    Tree,
    of_session,
)
from jupyterhub_gpu_reclaim.common.node_status import NodeStatus
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.clients.authority import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from jupyterhub_gpu_reclaim.common.agent_orders import AgentOrder
    from jupyterhub_gpu_reclaim.common.drain import NodeNotice
    from jupyterhub_gpu_reclaim.common.models import Failure, SessionKey, Waiting
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal

T = TypeVar("T")

_log = logging.getLogger(__name__)

_JSON = {"Content-Type": "application/json"}


class AgentClient:
    """The client of one node's agent, at ``unix:/path`` or ``https://host:port``.

    On this machine the user who listens at its socket vouches for it, elsewhere its
    certificate. A token's file is read at each call, so that it may appear or change
    later. Without a journal it is a person's, who only looks. ``quick`` and ``slow``
    are seconds for a call, ``silence`` those between two events of an operation.
    """

    def __init__(
        self,
        address: str,
        token: str | Path,
        *,
        journal: Journal | None = None,
        ca_file: str = "",
        at: str = "",
        quick: float = 15.0,
        slow: float = 120.0,
        silence: float = 300.0,
    ) -> None:
        self._token = token
        self._quick = quick
        self._slow = slow
        self._silence = silence
        self._authority = Authority(journal)
        self._http = Connection(
            address,
            self._headers,
            Reason.AGENT_UNREACHABLE,
            untrusted=Reason.AGENT_UNTRUSTED,
            ca_file=ca_file,
            at=at,
        )

    def close(self) -> None:
        self._http.close()

    async def stop(self) -> None:
        self.close()

    def _headers(self) -> dict[str, str]:
        token = {"Authorization": f"Bearer {self._read_token()}"}
        return {**token, **_JSON, **self._authority.headers()}

    def _read_token(self) -> str:
        if isinstance(self._token, str):
            return self._token
        try:
            token = self._token.read_text("ascii").strip()
            why = "" if token.isprintable() else "it is no line of text"
        except OSError as error:
            why = str(error.strerror)
        except ValueError:
            why = "it is no text"
        if why:
            raise self._http.unanswered(f"token file {self._token}: {why}")
        return token

    # --- looking
    def nodes(self) -> list[str]:
        return [""]

    async def status(self, node: str = "") -> NodeStatus:
        del node
        return await self._get("/v1/status", NodeStatus)

    async def node_notices(self) -> list[NodeNotice]:
        return []

    async def trees(self, key: SessionKey | None = None) -> list[Tree]:
        return of_session(key, await self._get("/v1/sessions", list[Tree]))

    async def tree(self, incarnation: str, *, pod: str = "") -> Tree:
        path = f"/v1/sessions/{incarnation}"
        path += f"?pod={quote(pod, safe='')}" if pod else ""
        return await self._get(path, Tree)

    def labels(self, key: SessionKey) -> dict[str, str]:
        del key
        return {}

    def ending(self, incarnation: str) -> Failure | None:
        """Return None: the end of a session on a machine is known to its spawner."""
        del incarnation
        return None

    def waiting(self) -> list[Waiting]:
        """Return none: a session on one machine always gets a place there."""
        return []

    async def samples(self, key: SessionKey | None = None) -> list[Sample]:
        """Sample every session; a sample that is not understood is left out."""
        del key
        found = []
        for each in await self._get("/v1/samples", list[msgspec.Raw]):
            try:
                found.append(codec.decode(bytes(each), Sample))
            except BadRequest as error:
                _log.warning("a sample is left out: %s", error)
        return found

    async def checkpoints(self, key: SessionKey | None = None) -> list[CheckpointInfo]:
        saved = await self._get("/v1/checkpoints", list[CheckpointInfo])
        self._authority.outrank(info.term for info in saved)
        return of_session(key, saved)

    async def identity(self, checkpoint: str) -> Identity:
        return await self._get(f"/v1/checkpoints/{checkpoint}/identity", Identity)

    # --- doing
    def follow(self, incarnation: str, order: AgentOrder) -> AsyncIterator[Event]:
        """Give an order that streams, or attach to it; the last event is the end."""
        return self._events(_path(incarnation, order), codec.encode(order))

    async def order(self, subject: str, order: AgentOrder) -> None:
        limit = self._quick if order.quick else self._slow
        path, data = _path(subject, order), codec.encode(order)
        await self._ask("POST", path, limit=limit, body=data)

    # --- the border
    async def _get(self, path: str, kind: type[T]) -> T:
        answer = await self._ask("GET", path, limit=self._quick)
        return self._http.decode(answer.body, kind, path)

    async def _ask(self, method: str, path: str, **more: Any) -> Answer:
        async def once() -> Answer:
            answer = await self._http.ask(method, path, **more)
            if answer.status >= 400:
                raise self._error(answer, path)
            return answer

        return await self._authority.ask(once)

    async def _events(self, path: str, data: bytes) -> AsyncGenerator[Event, None]:
        lines = self._http.lines("POST", path, data, silence=self._silence)
        async for line in lines:
            if isinstance(line, Answer):
                error = self._error(line, path)
                if error.reason is Reason.FORMER_SERVICE:
                    # Our term is raised by the next question.
                    raise self._http.unanswered(error)
                raise error
            if line.strip():
                yield self._http.decode(line, Event, path)

    def _error(self, answer: Answer, path: str) -> ReclaimError:
        refusal = answer.refusal()
        if refusal is None:
            return self._http.unanswered(f"{path}: status {answer.status}")
        if answer.status in {401, 403}:
            return self._http.unanswered(f"{path}: the agent does not take our token")
        return refusal


def _path(subject: str, order: AgentOrder) -> str:
    return f"/v1/{order.about}/{subject}/{order.kind}"

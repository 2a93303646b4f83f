"""HTTP client of one agent; implements the control plane's ``Agent``.

It decides nothing and retries nothing: no answer in time is
``Unreachable(AGENT_UNREACHABLE)``, and a refusal is raised in the agent's own words.
Calls, repetition and failure are in ``docs/explanation/architecture.md``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import (
    BadRequest,
    ReclaimError,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.http.client import (
    Answer,
    Connection,
    NoResponse,
    Untrusted,
)
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
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
    )
    from pathlib import Path

    from jupyterhub_gpu_reclaim.common.drain import NodeNotice
    from jupyterhub_gpu_reclaim.common.models import (
        Failure,
        Mark,
        SessionKey,
        Waiting,
    )
    from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal

T = TypeVar("T")

_log = logging.getLogger(__name__)

_JSON = {"Content-Type": "application/json"}


class AgentClient:
    """The client of one node's agent.

    On this machine the user who listens at its socket vouches for it, elsewhere its
    certificate.

    Args:
        address: ``unix:/path`` or ``https://host:port``.
        token: the bearer token, or a file that holds it; a file is read at each call,
            so that it may appear or change later.
        journal: in whose name; None: a person's, who only looks.
        ca_file: certificates that vouch for an ``https`` agent; empty: the system's.
        at: IP address of the agent; empty: that of the host in ``address``.
        quick: seconds for a call that only asks.
        slow: seconds for a call that waits for processes to end.
        silence: longest time in seconds between two events of an operation.
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
        self._http = Connection(address, self._headers, ca_file=ca_file, at=at)

    def close(self) -> None:
        """Close connections; operations continue at the agent."""
        self._http.close()

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
            detail = f"token file {self._token}: {why}"
            raise Unreachable(Reason.AGENT_UNREACHABLE, detail=detail)
        return token

    # --- looking
    async def node_notices(self) -> list[NodeNotice]:
        """Return no notices: no cluster gives any of this machine."""
        return []

    async def is_down(self, node: str) -> bool:
        """Return False: nobody else knows of this machine."""
        del node
        return False

    async def forsake(self, node: str) -> int:
        """Return 0: there are no pods."""
        del node
        return 0

    def nodes(self) -> list[str]:
        """Name the machine, which has no name here."""
        return [""]

    async def status(self, node: str = "") -> NodeStatus:
        """The node's status."""
        del node
        return await self._get("/v1/status", NodeStatus)

    async def trees(self, key: SessionKey | None = None) -> list[Tree]:
        """List incarnations with an init or a record; with a ``key``, its own."""
        return of_session(key, await self._get("/v1/sessions", list[Tree]))

    async def tree(self, incarnation: str, *, pod: str = "") -> Tree:
        """The tree of an incarnation; ``NotFound`` if there is none (in that pod)."""
        return await self._get(_session(incarnation, "", pod), Tree)

    def labels(self, key: SessionKey) -> dict[str, str]:
        """Return no labels: processes on a machine have none."""
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
        """List the committed checkpoints; with a ``key``, of that session."""
        saved = await self._get("/v1/checkpoints", list[CheckpointInfo])
        self._authority.outrank(info.term for info in saved)
        return of_session(key, saved)

    async def identity(self, checkpoint: str) -> Identity:
        """The login inside a checkpoint; never logged."""
        return await self._get(f"/v1/checkpoints/{checkpoint}/identity", Identity)

    # --- doing
    # ``pod`` is the uid of the session's pod, where sessions are pods; ``facts`` are
    # what the API server knows of it: ``key``, ``image``, ``node_labels``,
    # ``session``, ``account``.
    def capture(
        self,
        incarnation: str,
        checkpoint: str,
        generation: int,
        *,
        seen: float | None = None,
        pod: str = "",
        **facts: Any,
    ) -> AsyncIterator[Event]:
        """Capture a tree, or attach to that capture; the last event is the end."""
        body = {
            "checkpoint": checkpoint,
            "generation": generation,
            "seen": seen,
            **facts,
        }
        return self._stream(_session(incarnation, "capture", pod), body)

    def save(
        self,
        incarnation: str,
        checkpoint: str,
        generation: int,
        *,
        name: str = "",
        pod: str = "",
        **facts: Any,
    ) -> AsyncIterator[Event]:
        """Save a tree that goes on, or attach to that; the last event is the end."""
        body = {
            "checkpoint": checkpoint,
            "generation": generation,
            "name": name,
            **facts,
        }
        return self._stream(_session(incarnation, "save", pod), body)

    def restore(
        self,
        incarnation: str,
        checkpoint: str,
        *,
        put_files_back: bool = False,
        pod: str = "",
        **facts: Any,
    ) -> AsyncIterator[Event]:
        """Restore a tree, or attach to that restore; the last event is the end."""
        body = {"checkpoint": checkpoint, "put_files_back": put_files_back, **facts}
        return self._stream(_session(incarnation, "restore", pod), body)

    def nap(
        self,
        incarnation: str,
        *,
        seen: float | None = None,
        pod: str = "",
    ) -> AsyncIterator[Event]:
        """Move GPU memory out, or attach to that nap; the last event is the end."""
        body = {"seen": seen}
        return self._stream(_session(incarnation, "nap", pod), body)

    def wake(self, incarnation: str, *, pod: str = "") -> AsyncIterator[Event]:
        """Move GPU memory back, or attach to that wake; the last event is the end."""
        return self._stream(_session(incarnation, "wake", pod), {})

    def next_wake(self, incarnation: str, *, pod: str = "") -> AsyncIterator[Event]:
        """Follow the wake under way, or the next one; empty after a while without."""
        return self._stream(_session(incarnation, "next-wake", pod), method="GET")

    async def thaw(self, incarnation: str, *, pod: str = "") -> Tree:
        """Thaw a captured tree; its checkpoint is discarded."""
        return await self._order(_session(incarnation, "thaw", pod))

    async def release(
        self, incarnation: str, checkpoint: str, *, pod: str = ""
    ) -> Tree:
        """End a captured tree, if that checkpoint is committed."""
        path = _session(incarnation, "release", pod)
        return await self._order(path, {"checkpoint": checkpoint})

    async def kill(self, incarnation: str, *, pod: str = "") -> Tree:
        """End an orphan."""
        return await self._order(_session(incarnation, "kill", pod))

    async def cancel(self, incarnation: str, *, pod: str = "") -> None:
        """Cancel a running capture, save, nap or wake."""
        path = _session(incarnation, "cancel", pod)
        await self._post(path, dict[str, Any], limit=self._quick)

    async def discard(self, checkpoint: str, *, runs: str = "") -> None:
        """Delete a checkpoint, if that incarnation runs when the order arrives."""
        path = f"/v1/checkpoints/{checkpoint}"
        if runs:
            path += "?" + urlencode({"runs": runs})
        await self._ask("DELETE", path, limit=self._slow)

    async def mark(self, checkpoint: str, said: Mark, word: int) -> None:
        """Have a word about a checkpoint sealed in the store."""
        path = f"/v1/checkpoints/{checkpoint}/mark"
        body = codec.encode({"said": said, "word": word})
        await self._ask("PUT", path, limit=self._quick, body=body)

    # --- the border
    async def _order(self, path: str, body: Any = None) -> Tree:
        return await self._post(path, Tree, body, limit=self._slow)

    async def _get(self, path: str, kind: type[T]) -> T:
        answer = await self._ask("GET", path, limit=self._quick)
        return _decode(answer.body, kind, path)

    async def _post(
        self, path: str, kind: type[T], body: Any = None, *, limit: float
    ) -> T:
        answer = await self._ask(
            "POST", path, limit=limit, body=codec.encode(body or {})
        )
        return _decode(answer.body, kind, path)

    async def _ask(self, method: str, path: str, **more: Any) -> Answer:
        async def once() -> Answer:
            answer = await self._http.ask(method, path, **more)
            if answer.status >= 400:
                raise _error(answer, path)
            return answer

        try:
            return await self._authority.ask(once)
        except NoResponse as silent:
            raise _silence(silent) from None

    def _stream(
        self, path: str, body: Any = None, method: str = "POST"
    ) -> AsyncIterator[Event]:
        data = None if body is None else codec.encode(body)
        return self._authority.stream(lambda: self._events(path, data, method))

    async def _events(
        self, path: str, data: bytes | None, method: str
    ) -> AsyncGenerator[Event, None]:
        lines = self._http.lines(method, path, data, silence=self._silence)
        try:
            async for line in lines:
                if isinstance(line, Answer):
                    raise _error(line, path)
                if line.strip():
                    yield _decode(line, Event, path)
        except NoResponse as silent:
            raise _silence(silent) from None


def _session(incarnation: str, order: str, pod: str) -> str:
    """The path of an order for one session, in that pod if it is in one."""
    path = f"/v1/sessions/{incarnation}" + (f"/{order}" if order else "")
    return f"{path}?pod={quote(pod, safe='')}" if pod else path


def _silence(error: NoResponse) -> Unreachable:
    if isinstance(error, Untrusted):
        return Unreachable(Reason.AGENT_UNTRUSTED, why=str(error))
    return _unreachable(str(error))


def _unreachable(detail: str) -> Unreachable:
    return Unreachable(Reason.AGENT_UNREACHABLE, detail=detail)


def _decode(data: bytes, kind: type[T], path: str) -> T:
    """Decode an answer; any other is not our agent's."""
    try:
        return codec.decode(data, kind)
    except BadRequest as error:
        raise _unreachable(f"{path}: {error}") from None


def _error(answer: Answer, path: str) -> ReclaimError:
    """Read the agent's own error; an answer without one is no agent's of ours."""
    refusal = answer.refusal()
    if refusal is None:
        return _unreachable(f"{path}: status {answer.status}")
    if answer.status in {401, 403}:
        return _unreachable(f"{path}: the agent does not take our token")
    return refusal

"""The Hub's process asks the service: how to start, how to stop, what is going on.

Called by the spawner's mixin only. It decides nothing. A service that says that it is
being started is asked again until it has been; nothing else is retried: what does not
answer within its time limit is ``Unreachable(SERVICE_UNREACHABLE)``, what the service
refuses is raised in the service's own words.

Address: ``http://host:port`` or ``unix:/path``; the calls are listed in
``docs/explanation/architecture.md``.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from jupyterhub_gpu_reclaim import wire
from jupyterhub_gpu_reclaim.clients.http import Answer, Connection, Silent
from jupyterhub_gpu_reclaim.errors import BadRequest, ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.models import (
    Event,
    Placement,
    SessionKey,
    StartPlan,
    StopPlan,
)
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.vouching import NONCE, PROOF, VERSION, Hello, Vouching

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T")

#: Seconds between two questions to a service that is being started, and all of them.
STARTING_PAUSE, STARTING_LIMIT = 0.5, 60.0
#: Longest silence of a progress stream, seconds; then it is asked for again.
MAX_SILENCE = 3600.0


class ServiceClient:
    """The service's spawner API.

    Args:
        address: ``http://host:port[/prefix]`` or ``unix:/path/of/socket``; without a
            prefix the service's usual one is taken.
        token: the spawner token (``GPU_RECLAIM_SPAWNER_TOKEN``).
        timeout: seconds for a call that only asks.
        slow_timeout: seconds for a call that waits for processes to end.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        prefix: str = "/services/gpu-reclaim",
        timeout: float = 10.0,
        slow_timeout: float = 60.0,
    ) -> None:
        self._vouching = Vouching(token.encode())
        self._run = ""  #: of the service, as it has proved it; empty: not asked yet
        self._timeout = timeout
        self._slow_timeout = slow_timeout
        self._prefix = prefix.rstrip("/") + "/api/spawner/"
        self._http = Connection(address, lambda: {"Content-Type": "application/json"})

    def close(self) -> None:
        """Close connections; calls in flight fail."""
        self._http.close()

    async def plan_start(self, placement: Placement) -> StartPlan:
        """How to start. Idempotent.

        The service may call off a running capture first, hence the long limit.
        """
        return await self._plan("plan-start", placement, StartPlan)

    async def placed(self, placement: Placement) -> None:
        """An init holds the place, or (no checkpoint) a cold start runs. Idempotent."""
        await self._tell("placed", placement)

    async def cancelled(self, placement: Placement) -> None:
        """The start was called off; the checkpoint is kept. Idempotent."""
        await self._tell("cancelled", placement)

    async def plan_stop(self, placement: Placement) -> StopPlan:
        """Whether a stop is real or the release of a saved session. Idempotent.

        The service may finish a running capture first, hence the long limit.
        """
        return await self._plan("plan-stop", placement, StopPlan)

    async def release(self, placement: Placement) -> None:
        """End the saved tree; returns when it is dead. Idempotent."""
        await self._tell("release", placement, limit=self._slow_timeout)

    async def stopped(self, placement: Placement) -> None:
        """A real stop has happened. Idempotent."""
        await self._tell("stopped", placement)

    async def forget(self, key: SessionKey) -> None:
        """The server was deleted for ever. Idempotent."""
        await self._tell("forget", key)

    async def progress(self, key: SessionKey, after: int) -> AsyncIterator[Event]:
        """Steps of the restore in hand, from event number ``after`` on, until its end.

        Raises:
            Unreachable: the stream broke; call again with the number of events seen.
        """
        path = f"{self._prefix}progress/{key.path}?after={after}"
        try:
            async for line in self._proved_lines(path):
                if line.strip():
                    yield _understood(line, Event, path)
        except Silent as silent:
            raise _unreachable(str(silent)) from None

    # --- one call ------------------------------------------------------------------

    async def _plan(self, call: str, placement: Placement, kind: type[T]) -> T:
        """A question whose answer may take the agent's time."""
        body = await self._tell(call, placement, limit=self._slow_timeout)
        return _understood(body, kind, call)

    async def _tell(
        self, call: str, what: Placement | SessionKey, *, limit: float = 0.0
    ) -> bytes:
        limit, body = limit or self._timeout, wire.encode(what)
        waited = 0.0
        while True:
            try:
                answer = await self._asked("POST", call, limit=limit, body=body)
                if answer.status == 401:  # it has proved itself: another run of it
                    self._run = ""
                    answer = await self._asked("POST", call, limit=limit, body=body)
                if answer.status < 300:
                    return answer.body
                refusal = _refusal(answer, call)
            except Silent as silent:
                raise _unreachable(str(silent)) from None
            except ReclaimError as error:
                refusal = error  # of its greeting
            starts = refusal.reason is Reason.SERVICE_STARTING
            if not starts or waited >= STARTING_LIMIT:
                raise refusal
            await asyncio.sleep(STARTING_PAUSE)
            waited += STARTING_PAUSE

    async def _asked(
        self, method: str, call: str, *, token: bool = True, **more: Any
    ) -> Answer:
        """One request and its answer, which the service has proved to be its own."""
        headers = await self._shown() if token else {}
        headers[NONCE] = nonce = token_hex()
        path = self._prefix + call
        answer = await self._http.ask(method, path, headers=headers, **more)
        self._check(answer, nonce, call)
        return answer

    async def _shown(self) -> dict[str, str]:
        """What this run of the service takes; asked of it once."""
        if not self._run:
            answer = await self._asked("GET", "hello", token=False, limit=self._timeout)
            if answer.status >= 300:
                raise _refusal(answer, "hello")
            hello = _understood(answer.body, Hello, "hello")
            if hello.version != VERSION:
                raise _unreachable(f"it proves itself by version {hello.version}")
            self._run = hello.run
        return {"Authorization": f"token {self._vouching.token(self._run)}"}

    async def _proved_lines(self, path: str) -> AsyncIterator[bytes]:
        """The lines of a stream that the service has proved to be its own."""
        headers = await self._shown()
        headers[NONCE] = nonce = token_hex()
        number = 0
        lines = self._http.lines("GET", path, silence=MAX_SILENCE, headers=headers)
        async with aclosing(lines):
            async for line in lines:
                if isinstance(line, Answer):
                    self._check(line, nonce, path)
                    if line.status == 401:
                        self._run = ""  # whoever asks again gets the next one's
                        raise _unreachable(f"{path}: another run of the service")
                    raise _refusal(line, path)
                if not line.strip():
                    continue
                opened = self._vouching.opened(nonce, number, line)
                if opened is None:
                    raise _unreachable(f"{path}: a line without its proof")
                number += 1
                yield opened

    def _check(self, answer: Answer, nonce: str, call: str) -> None:
        """Take no answer of anybody else who listens where the service should.

        Raises:
            Unreachable: it is not the service's.
        """
        given = answer.headers.get(PROOF, "")
        if not self._vouching.is_proved(given, nonce, answer.status, answer.body):
            what = (
                f"{call}: status {answer.status}, and no proof that it is the service"
            )
            raise _unreachable(what)


def _unreachable(detail: str) -> Unreachable:
    return Unreachable(Reason.SERVICE_UNREACHABLE, detail=detail)


def _understood(data: bytes, kind: type[T], path: str) -> T:
    """A value of ours; anything else is not our service, or one that is too new."""
    try:
        return wire.decode(data, kind)
    except BadRequest as error:
        raise _unreachable(f"{path}: {error}") from None


def _refusal(answer: Answer, path: str) -> ReclaimError:
    """The service's answer as our error; one without words of ours is no answer."""
    return answer.refusal() or _unreachable(f"{path}: status {answer.status}")

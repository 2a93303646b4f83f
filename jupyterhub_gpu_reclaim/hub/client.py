"""The spawner's HTTP client of the service: plans, reports, progress.

It decides nothing. A service that answers "being started" is asked again until it has
started, and one that does not listen, once for a while; nothing else is retried. No
answer within the time limit is ``Unreachable(SERVICE_UNREACHABLE)``; a refusal is
raised in the service's own words.

The socket is in the service's folder, and is trusted if its listener is root, or runs
as the Hub does. The calls are listed in ``docs/explanation/architecture.md``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.http.client import Answer, Connection, NobodyThere
from jupyterhub_gpu_reclaim.common.models import (
    Event,
    Placement,
    SessionKey,
    StartPlan,
    StopPlan,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
    from jupyterhub_gpu_reclaim.common.errors import ReclaimError

T = TypeVar("T")

#: Seconds between two requests to a service that is being started, and in all.
STARTING_PAUSE, STARTING_LIMIT = 0.5, 60.0
#: Longest silence of a progress stream, seconds; then it is asked for again. An empty
#: line comes every 15 s (``service.api.context.Limits.heartbeat``).
MAX_SILENCE = 45.0


class ServiceClient:
    """The service's spawner API. Reports are idempotent.

    ``timeout`` is for a call that only asks, and for a service that does not listen: it
    is waited for once, until it answers again. ``slow_timeout`` is for one that waits
    for processes to end, or for a suspend under way: longer than the service's
    ``Settings.settle_limit``.
    """

    def __init__(
        self,
        address: str,
        *,
        prefix: str = "/services/gpu-reclaim",
        timeout: float = 10.0,
        slow_timeout: float = 180.0,
    ) -> None:
        self._timeout = timeout
        self._slow_timeout = slow_timeout
        self._waits = True  #: for a service that does not listen
        self._prefix = prefix.rstrip("/") + "/api/spawner/"
        headers = {"Content-Type": "application/json"}
        silence = Reason.SERVICE_UNREACHABLE
        self._http = Connection(address, lambda: headers, silence)

    def close(self) -> None:
        self._http.close()

    async def plan_start(self, placement: Placement) -> StartPlan:
        """Ask how to start. Idempotent; may cancel a running capture first."""
        return await self._request_plan("plan-start", placement, StartPlan)

    async def placed(self, placement: Placement) -> None:
        await self._call("placed", placement)

    async def cancelled(self, placement: Placement) -> None:
        """Report a cancelled start; the checkpoint is kept. Idempotent."""
        await self._call("cancelled", placement)

    async def plan_stop(self, placement: Placement) -> StopPlan:
        """Ask whether a stop is real or releases a captured session. Idempotent.

        The service may finish a running capture first, hence the long limit.
        """
        return await self._request_plan("plan-stop", placement, StopPlan)

    async def release(self, placement: Placement) -> None:
        """End the captured tree; returns when it is dead. Idempotent."""
        await self._call("release", placement, limit=self._slow_timeout)

    async def stopped(self, placement: Placement) -> None:
        await self._call("stopped", placement)

    async def login_revoked(self, placement: Placement) -> None:
        await self._call("login-revoked", placement)

    async def forget(self, deletion: Deletion) -> None:
        await self._call("forget", deletion)

    async def progress(self, key: SessionKey) -> AsyncIterator[Event]:
        """Steps of the restore under way, from its begin to its end.

        Raises:
            Unreachable: the stream broke; call again.
        """
        path = f"{self._prefix}progress/{key.path}"
        async for line in self._http.lines("GET", path, silence=MAX_SILENCE):
            if isinstance(line, Answer):
                raise self._refusal(line, path)
            if line.strip():
                yield self._http.decode(line, Event, path)

    # --- one call ------------------------------------------------------------------

    async def _request_plan(self, call: str, placement: Placement, kind: type[T]) -> T:
        body = await self._call(call, placement, limit=self._slow_timeout)
        return self._http.decode(body, kind, call)

    async def _call(
        self, call: str, what: Placement | Deletion, *, limit: float = 0.0
    ) -> bytes:
        limit, body = limit or self._timeout, codec.encode(what)
        now = asyncio.get_running_loop().time
        until = now() + STARTING_LIMIT
        there = now() + (self._timeout if self._waits else 0.0)
        while True:
            try:
                answer = await self._http.ask(
                    "POST", self._prefix + call, limit=limit, body=body
                )
            except NobodyThere:
                if now() >= there:
                    self._waits = False
                    raise
                await asyncio.sleep(STARTING_PAUSE)
                continue
            self._waits = True
            if answer.status < 300:
                return answer.body
            refusal = self._refusal(answer, call)
            starts = refusal.reason is Reason.SERVICE_STARTING
            if not starts or now() >= until:
                raise refusal
            await asyncio.sleep(STARTING_PAUSE)

    def _refusal(self, answer: Answer, path: str) -> ReclaimError:
        # An error without our code counts as no answer.
        detail = f"{path}: status {answer.status}"
        return answer.refusal() or self._http.unanswered(detail)

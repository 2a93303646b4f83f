"""The Hub's process asks the service: how to start, how to stop, what is going on.

Called by the spawner's mixin only. It decides nothing and retries nothing: what does
not answer within its time limit is ``Unreachable(SERVICE_UNREACHABLE)``, what the
service refuses is raised in the service's own words.

Address: ``http://host:port`` or ``unix:/path``; the calls are listed in
``docs/explanation/architecture.md``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.simple_httpclient import HTTPTimeoutError, SimpleAsyncHTTPClient

from jupyterhub_gpu_reclaim import wire
from jupyterhub_gpu_reclaim.clients.http import UnixResolver
from jupyterhub_gpu_reclaim.errors import BadRequest, ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.models import (
    Event,
    Failure,
    Placement,
    SessionKey,
    StartPlan,
    StopPlan,
)
from jupyterhub_gpu_reclaim.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T")

#: Longest line of a progress stream, bytes.
MAX_LINE = 1 << 20
#: Longest life of one progress stream, seconds; then it is asked for again.
MAX_PROGRESS = 3600.0


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
        self._token = token
        self._timeout = timeout
        self._slow_timeout = slow_timeout
        options: dict[str, Any] = {"max_clients": 1000}
        if address.startswith("unix:"):
            options["resolver"] = UnixResolver(path=address.removeprefix("unix:"))
            address = "http://localhost"
        self._base = address.rstrip("/") + prefix.rstrip("/") + "/api/spawner/"
        self._client = SimpleAsyncHTTPClient(force_instance=True, **options)

    def close(self) -> None:
        """Close connections; calls in flight fail."""
        self._client.close()

    async def plan_start(self, placement: Placement) -> StartPlan:
        """How to start. Idempotent.

        The service may call off a running capture first, hence the long limit.
        """
        return await self._call(
            "plan-start", placement, StartPlan, timeout=self._slow_timeout
        )

    async def placed(self, placement: Placement) -> None:
        """An init holds the place, or (no checkpoint) a cold start runs. Idempotent."""
        await self._call("placed", placement)

    async def cancelled(self, placement: Placement) -> None:
        """The start was called off; the checkpoint is kept. Idempotent."""
        await self._call("cancelled", placement)

    async def plan_stop(self, placement: Placement) -> StopPlan:
        """Whether a stop is real or the release of a saved session. Idempotent.

        The service may finish a running capture first, hence the long limit.
        """
        return await self._call(
            "plan-stop", placement, StopPlan, timeout=self._slow_timeout
        )

    async def release(self, placement: Placement) -> None:
        """End the saved tree; returns when it is dead. Idempotent."""
        await self._call("release", placement, timeout=self._slow_timeout)

    async def stopped(self, placement: Placement) -> None:
        """A real stop has happened. Idempotent."""
        await self._call("stopped", placement)

    async def forget(self, key: SessionKey) -> None:
        """The server was deleted for ever. Idempotent."""
        await self._call("forget", key)

    async def progress(self, key: SessionKey, after: int) -> AsyncIterator[Event]:
        """Steps of the restore in hand, from event number ``after`` on, until its end.

        Raises:
            Unreachable: the stream broke; call again with the number of events seen.
        """
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        buffer = bytearray()

        def receive(chunk: bytes) -> None:
            buffer.extend(chunk)
            *whole, rest = bytes(buffer).split(b"\n")
            buffer[:] = rest
            for line in whole:
                lines.put_nowait(line)
            if len(buffer) > MAX_LINE:
                error = "A line of the progress is too long."
                raise BadRequest(Reason.INVALID, what=error)

        path = f"progress/{key.path}?after={after}"
        request = self._request(path, None, timeout=MAX_PROGRESS)
        request.streaming_callback = receive
        fetch = asyncio.ensure_future(self._fetch(request))

        def end(done: asyncio.Future[bytes]) -> None:
            done.cancelled() or done.exception()  # looked at, so asyncio is content
            lines.put_nowait(None)

        fetch.add_done_callback(end)
        # A reader that stops early leaves the stream to its end: cancelling it makes
        # tornado log an error of its own making.
        while (line := await lines.get()) is not None:
            if line.strip():
                yield wire.decode(line, Event)
        await fetch

    # --- one call ------------------------------------------------------------------

    async def _call(
        self,
        path: str,
        body: Any,
        kind: type[T] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the HTTP client's own limit
    ) -> T:
        request = self._request(path, body, timeout=timeout or self._timeout)
        answer = await self._fetch(request)
        if kind is None:
            return None  # type: ignore[return-value]
        return wire.decode(answer, kind)

    def _request(self, path: str, body: Any, *, timeout: float) -> HTTPRequest:
        return HTTPRequest(
            self._base + path,
            method="GET" if body is None else "POST",
            body=None if body is None else wire.encode(body),
            headers={
                "Authorization": f"token {self._token}",
                "Content-Type": "application/json",
            },
            connect_timeout=self._timeout,
            request_timeout=timeout,
            follow_redirects=False,
        )

    async def _fetch(self, request: HTTPRequest) -> bytes:
        try:
            answer = await self._client.fetch(request)
        except HTTPTimeoutError as error:
            raise _unreachable(request, error) from None
        except HTTPClientError as error:
            raise _refusal(request, error) from None
        except (OSError, ValueError) as error:
            raise _unreachable(request, error) from None
        return bytes(answer.body or b"")


def _unreachable(request: HTTPRequest, error: Exception) -> Unreachable:
    detail = f"{request.url}: {type(error).__name__}: {error}"
    return Unreachable(Reason.SERVICE_UNREACHABLE, detail=detail)


def _refusal(request: HTTPRequest, error: HTTPClientError) -> ReclaimError:
    """The service's answer as our error; one without words of ours is no answer."""
    body = bytes(error.response.body or b"") if error.response else b""
    try:
        failure = wire.decode(body, Failure)
    except BadRequest:
        return _unreachable(request, error)
    return wire.error_of(failure, wire.kind_of_status(error.code))

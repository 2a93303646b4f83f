"""HTTP as all our clients speak it: unix socket or TCP, limits, errors of our own.

Used by the other clients only. It knows no call of any; what does not answer in time is
:class:`Silent`, which they turn into their own word.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tornado.httpclient import HTTPError, HTTPRequest
from tornado.iostream import StreamClosedError
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

#: Requests at the same time; a capture holds one for as long as it takes.
MAX_CLIENTS = 1000
#: Longest line of a stream, bytes.
MAX_LINE = 1 << 20


class Silent(Exception):
    """No answer, or none that is HTTP; the text is for the log."""


@dataclass(frozen=True)
class Answer:
    """Status and body."""

    status: int
    body: bytes


class UnixResolver(Resolver):
    """Resolves every name to one unix socket."""

    def initialize(self, path: str) -> None:
        """Remember the socket.

        Args:
            path: of the socket.
        """
        self._path = path

    async def resolve(
        self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[tuple[int, Any]]:
        """The socket, whatever was asked for."""
        del host, port, family
        return [(int(socket.AF_UNIX), self._path)]


class Connection:
    """One far part.

    Args:
        address: ``unix:/path``, ``http://host:port`` or ``https://host:port``.
        headers: sent with every request; asked anew each time, since a token's file
            may appear or change later.
        ca_file: certificates that vouch for an ``https`` address; empty: the system's.
    """

    def __init__(
        self,
        address: str,
        headers: Callable[[], dict[str, str]],
        *,
        ca_file: str = "",
    ) -> None:
        options: dict[str, Any] = {"max_clients": MAX_CLIENTS}
        if address.startswith("unix:"):
            options["resolver"] = UnixResolver(path=address.removeprefix("unix:"))
            address = "http://localhost"
        self._base = address.rstrip("/")
        self._headers = headers
        self._ssl = ssl.create_default_context(cafile=ca_file) if ca_file else None
        self._client = SimpleAsyncHTTPClient(force_instance=True, **options)

    def close(self) -> None:
        """Close what is open; calls in flight fail."""
        self._client.close()

    def _request(
        self, method: str, path: str, limit: float, **more: Any
    ) -> HTTPRequest:
        if method in {"POST", "PUT"}:
            more.setdefault("body", b"")
        headers = {**self._headers(), **more.pop("headers", {})}
        return HTTPRequest(
            self._base + path,
            method=method,
            headers=headers,
            connect_timeout=min(limit, 10.0) if limit else 10.0,
            request_timeout=limit,
            follow_redirects=False,
            ssl_options=self._ssl,
            **more,
        )

    async def ask(self, method: str, path: str, *, limit: float, **more: Any) -> Answer:
        """One request and its whole answer.

        Args:
            method: of HTTP.
            path: with query.
            limit: seconds for all of it.
            **more: of tornado's ``HTTPRequest``.

        Raises:
            Silent: nobody answered in time.
        """
        request = self._request(method, path, limit, **more)
        try:
            response = await self._client.fetch(request, raise_error=False)
        except (HTTPError, OSError, StreamClosedError) as error:
            raise Silent(f"{method} {path}: {error}") from None
        if response.code == 599:
            raise Silent(f"{method} {path}: {response.error}")
        return Answer(response.code, bytes(response.body or b""))

    async def lines(
        self, path: str, body: bytes, *, silence: float
    ) -> AsyncIterator[bytes | Answer]:
        """A POST whose answer comes line by line.

        Args:
            path: of the call.
            body: of the request.
            silence: longest time in seconds between two pieces of the answer.

        Yields:
            Each line, or one :class:`Answer` where it is an error.

        Raises:
            Silent: the stream broke or fell silent.
        """
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        status: list[int] = []
        closed = False

        def header(line: str) -> None:
            if line.startswith("HTTP/"):
                status[:] = [int(line.split()[1])]

        def piece(data: bytes) -> None:
            if closed:  # nobody reads any more: let the connection go
                raise StreamClosedError
            pieces.put_nowait(bytes(data))

        request = self._request(
            "POST",
            path,
            0.0,
            body=body,
            header_callback=header,
            streaming_callback=piece,
        )
        fetched = asyncio.ensure_future(self._client.fetch(request, raise_error=False))
        fetched.add_done_callback(lambda _: pieces.put_nowait(None))
        rest = b""
        try:
            while (data := await _within(silence, pieces.get(), path)) is not None:
                rest += data
                if len(rest) > MAX_LINE:
                    raise Silent(f"{path}: a line is too long")
                if status and status[0] < 400:
                    *lines, rest = rest.split(b"\n")
                    for line in lines:
                        yield line
            _check(fetched, path)
            if status and status[0] >= 400:
                yield Answer(status[0], rest)
        finally:
            closed = True
            fetched.add_done_callback(lambda done: done.exception())


async def _within(seconds: float, work: Any, path: str) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise Silent(f"{path}: silent for {seconds:.0f} s") from None


def _check(fetched: asyncio.Future[Any], path: str) -> None:
    """A stream that ended has to have ended well."""
    error = fetched.exception()
    if error is not None:
        raise Silent(f"{path}: {error}") from None
    if fetched.result().code == 599:
        raise Silent(f"{path}: {fetched.result().error}")

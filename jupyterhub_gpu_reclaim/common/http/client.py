"""HTTP client for unix sockets and TCP.

No answer, or one that is not our other part's, is ``Unreachable``, with the reason that
a connection is made with; its detail is for the log.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from tornado.httpclient import HTTPError, HTTPRequest
from tornado.iostream import IOStream, StreamClosedError
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from tornado.tcpclient import TCPClient

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import (
    BadRequest,
    ReclaimError,
    Refused,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.http import unix_sockets
from jupyterhub_gpu_reclaim.common.models import Failure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from tornado.netutil import Resolver

    from jupyterhub_gpu_reclaim.common.reasons import Reason

T = TypeVar("T")

#: How the address of a UNIX socket begins.
UNIX = "unix:"
_ABSENT = (ConnectionRefusedError, FileNotFoundError)
#: Requests at the same time; a capture holds one for as long as it takes.
MAX_CLIENTS = 1000
#: Longest line of a stream, bytes.
MAX_LINE = 1 << 20


class NobodyThere(Unreachable):
    """No listener at that address; nothing was sent."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    def refusal(self) -> ReclaimError | None:
        try:
            failure = codec.decode(self.body, Failure)
        except BadRequest:
            return None
        return codec.error_of(failure, codec.BY_STATUS.get(self.status, Refused))


class _Dialler(TCPClient):
    """Connects to a UNIX socket, if there is a path; can drop its last connection."""

    _stream: IOStream | None = None
    _left = False

    def __init__(self, resolver: Resolver, path: Path | None) -> None:
        super().__init__(resolver=resolver)
        self._path = path

    async def connect(self, *args: Any, **more: Any) -> IOStream:
        if self._path is None:
            stream = await super().connect(*args, **more)
        else:
            stream = await _to_socket(self._path)
        self._stream = stream
        if self._left:
            stream.close()
        return stream

    def let_go(self) -> None:
        """Close it; that ends the request, whatever it waits for."""
        self._left = True
        if self._stream is not None:
            self._stream.close()


async def _to_socket(path: Path) -> IOStream:
    """Connect to a UNIX socket whose listener is root's or ours; else OSError."""
    made = socket.socket(socket.AF_UNIX)
    made.setblocking(False)
    stream = IOStream(made)
    try:
        with unix_sockets.address(path) as there:
            await stream.connect(there)
        unix_sockets.refuse_strangers(made)
    except BaseException:
        stream.close()
        raise
    return stream


class Connection:
    """Connection to one far part.

    Args:
        address: ``unix:/path``, ``http://host:port`` or ``https://host:port``. The
            listener at a path has to be root's, or ours.
        headers: sent with every request; read each time, since a token's file may
            appear or change later.
        silence: the reason of an ``Unreachable``; its sentence may say ``why``.
        untrusted: likewise, where the listener's certificate is refused.
        ca_file: certificates that vouch for an ``https`` address; empty: the system's.
        own: files of a certificate and its key that we show there; None: none.
        at: IP address to connect to; empty: that of the host in ``address``.
    """

    def __init__(
        self,
        address: str,
        headers: Callable[[], dict[str, str]],
        silence: Reason,
        *,
        untrusted: Reason | None = None,
        ca_file: str = "",
        own: tuple[str, str] | None = None,
        at: str = "",
        **facts: Any,  # further ones of those sentences
    ) -> None:
        options: dict[str, Any] = {"max_clients": MAX_CLIENTS}
        self._path = None
        if address.startswith(UNIX):
            self._path = Path(address.removeprefix(UNIX))
            address = "http://localhost"
        elif at:
            options["hostname_mapping"] = {urlsplit(address).hostname: at}
        self._base = address.rstrip("/")
        self._headers = headers
        self._silence = silence
        self._untrusted = untrusted or silence
        self._facts = facts
        self._ssl = ssl.create_default_context(cafile=ca_file) if ca_file else None
        if self._ssl is not None and own is not None:
            self._ssl.load_cert_chain(*own)
        self._options = options
        self._client = self._make_client()

    def close(self) -> None:
        self._client.close()

    def unanswered(self, detail: object, **facts: Any) -> Unreachable:
        """What is there is not our other part, or not of our version."""
        return Unreachable(self._silence, detail=str(detail), **self._facts, **facts)

    def decode(self, data: bytes, kind: type[T], path: str, **facts: Any) -> T:
        """What it has answered at a path; Unreachable: that is not understood."""
        try:
            return codec.decode(data, kind)
        except BadRequest as error:
            raise self.unanswered(f"{path}: {error}", **facts) from None

    def _failure(self, path: str, error: object) -> Unreachable:
        """The error of a call for its cause, as the connection reports it."""
        kind = NobodyThere if isinstance(error, _ABSENT) else Unreachable
        reason, text = self._silence, str(getattr(error, "strerror", None) or error)
        if isinstance(error, ssl.SSLCertVerificationError):
            reason, text = self._untrusted, error.verify_message
        # The end of the library's message: "Connection refused".
        why = text.rpartition(": ")[2].rpartition("] ")[2].strip(". ")
        why = why[:1].lower() + why[1:]
        return kind(reason, why=why, detail=f"{path}: {text}", **self._facts)

    async def _within(self, seconds: float, work: Any, path: str) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise self._failure(path, f"silent for {seconds:.0f} s") from None

    def _make_client(self) -> SimpleAsyncHTTPClient:
        client = SimpleAsyncHTTPClient(force_instance=True, **self._options)
        client.tcp_client = _Dialler(client.resolver, self._path)
        return client

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
            # Older versions of tornado unpack an answer without a limit.
            decompress_response=False,
            ssl_options=self._ssl,
            **more,
        )

    async def ask(self, method: str, path: str, *, limit: float, **more: Any) -> Answer:
        """Send one request, and return its whole answer within ``limit`` seconds.

        Raises:
            Unreachable: no answer in time.
        """
        request = self._request(method, path, limit, **more)
        fetched = asyncio.ensure_future(self._client.fetch(request, raise_error=False))
        fetched.add_done_callback(_look_at)
        try:
            # Not cancelled with us: tornado logs what becomes of it as an error.
            response = await asyncio.shield(fetched)
        except (HTTPError, OSError, StreamClosedError) as error:
            raise self._failure(f"{method} {path}", error) from None
        return Answer(response.code, bytes(response.body or b""))

    async def lines(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        silence: float,
    ) -> AsyncGenerator[bytes | Answer, None]:
        """A request with an answer line by line; leaving early closes the connection.

        ``silence``: longest time in seconds between two pieces of the answer.

        Yields:
            Each line, or one :class:`Answer` if it is an error.

        Raises:
            Unreachable: the stream broke or fell silent.
        """
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        status: list[int] = []

        def header(line: str) -> None:
            if line.startswith("HTTP/"):
                status[:] = [int(line.split()[1])]

        request = self._request(
            method,
            path,
            0.0,
            body=body,
            header_callback=header,
            streaming_callback=lambda data: pieces.put_nowait(bytes(data)),
        )
        client = self._make_client()
        fetched = asyncio.ensure_future(client.fetch(request, raise_error=False))
        fetched.add_done_callback(_look_at)
        fetched.add_done_callback(lambda _: pieces.put_nowait(None))
        rest = b""
        try:
            while (data := await self._within(silence, pieces.get(), path)) is not None:
                rest += data
                if len(rest) > MAX_LINE:
                    raise self._failure(path, "a line is too long")
                if status and status[0] < 400:
                    *lines, rest = rest.split(b"\n")
                    for line in lines:
                        yield line
            error: object = fetched.exception()
            if error is None and fetched.result().code == 599:
                error = fetched.result().error
            if error is not None:
                raise self._failure(path, error) from None
            if status and status[0] >= 400:
                yield Answer(status[0], rest)
        finally:
            client.tcp_client.let_go()  # type: ignore[attr-defined]
            client.close()


def _look_at(done: asyncio.Future[Any]) -> None:
    """Retrieve the future's exception, so that asyncio does not log it as lost."""
    if not done.cancelled():
        done.exception()

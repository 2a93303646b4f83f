"""HTTP server that cannot be exhausted by idle connections.

A connection is dropped if its request's head or body takes too long. If too many
connections wait without a request, the one that has waited longest is closed for the
next, so a request is served however many others are idle. A request that is being
answered is never cut off. A body that is too long is read to its end, discarded and
answered with 413: a caller that still writes would only see a reset.
"""

from __future__ import annotations

import logging
import resource
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, ResponseStartLine

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable

    from tornado.http1connection import HTTP1ServerConnection
    from tornado.httputil import (
        HTTPConnection,
        HTTPServerConnectionDelegate,
        RequestStartLine,
    )
    from tornado.iostream import IOStream
    from tornado.web import Application

log = logging.getLogger(__name__)

#: Seconds for a request's head, also between two requests on one connection.
HEAD_SECONDS = 30.0
#: Seconds for a request's body; ours have a few hundred bytes.
BODY_SECONDS = 15.0
#: Connections without a request yet; no more than a quarter of the file limit.
MOST_WAITING = 512
#: Connections in all, with those that are being answered; at most half of the limit.
MOST = 4096
#: Bytes of a request's head.
MOST_HEAD = 32 * 1024
#: What tornado itself refuses, it resets.
_ANY = 1 << 62
#: Seconds between two lines of the log about it.
_QUIET = 60.0


def raise_file_limit() -> int:
    """Raise this process's limit of open files to its maximum; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return MOST * 2 if hard == resource.RLIM_INFINITY else hard


class Door(HTTPServer):
    """A server for an application; ``max_body`` is the longest body that it takes.

    ``files``: how many files this process may have open; most stay for other things.
    """

    def initialize(  # type: ignore[override]
        self,
        application: Application | HTTPServerConnectionDelegate,
        *,
        max_body: int,
        files: int,
        xheaders: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().initialize(
            application,
            ssl_options=tls,
            xheaders=xheaders,
            max_body_size=_ANY,
            max_header_size=MOST_HEAD,
            idle_connection_timeout=HEAD_SECONDS,
            body_timeout=BODY_SECONDS,
        )
        self._most_body = max_body
        self._most_waiting = min(MOST_WAITING, files // 4)
        self._most = min(MOST, files // 2)
        self._waiting: OrderedDict[HTTP1ServerConnection, None] = OrderedDict()
        self._closed = 0
        self._told = -_QUIET

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        if len(self._connections) >= self._most and not self._waiting:
            self._close(stream)  # all of them are being answered
            return
        super().handle_stream(stream, address)

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        self._waiting[server_conn] = None  # type: ignore[index]
        while (
            len(self._waiting) > self._most_waiting
            or len(self._connections) > self._most
        ) and self._waiting:
            oldest, _ = self._waiting.popitem(last=False)
            self._close(oldest.stream)
        return _Asking(
            super().start_request(server_conn, request_conn),
            lambda: self._waiting.pop(server_conn, None),  # type: ignore[call-overload]
            request_conn,
            self._most_body,
        )

    def on_close(self, server_conn: object) -> None:
        self._waiting.pop(server_conn, None)  # type: ignore[call-overload]
        super().on_close(server_conn)

    def _close(self, stream: Any) -> None:
        stream.close()
        self._closed += 1
        now = time.monotonic()
        if now - self._told >= _QUIET:
            log.warning("- %d connections closed: too many of them", self._closed)
            self._told, self._closed = now, 0


class _Asking(HTTPMessageDelegate):
    def __init__(
        self,
        inner: HTTPMessageDelegate,
        asked: Any,
        connection: HTTPConnection,
        most_body: int,
    ) -> None:
        self._inner = inner
        self._asked = asked
        self._connection = connection
        self._most_body = most_body
        self._bytes = 0

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        return self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._bytes += len(chunk)
        if self._bytes > self._most_body:
            return None
        return self._inner.data_received(chunk)

    def finish(self) -> None:
        self._asked()
        if self._bytes > self._most_body:
            self._refuse()
        else:
            self._inner.finish()

    def _refuse(self) -> None:
        what = f"The request has more than {self._most_body} bytes."
        body = codec.encode(codec.failure_of(BadRequest(Reason.INVALID, what=what)))
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        start = ResponseStartLine("HTTP/1.1", 413, "Content Too Large")
        self._connection.write_headers(start, HTTPHeaders(headers), body)
        self._connection.finish()

    def on_connection_close(self) -> None:
        self._inner.on_connection_close()

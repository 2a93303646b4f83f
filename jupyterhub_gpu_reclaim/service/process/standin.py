"""Stand-in: answers at the service's address while the service itself does not.

A few lines of HTTP on the standard library, so that it listens a moment after the
program has started. It says that the service is being started, or the one sentence of
what prevents it; it never touches a session. The service's own page is answered with
200, since JupyterHub ends itself if a managed service answers with an error at its
start; every other address is a 503 in our own words.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

#: Connections at a time; further ones are closed at once.
MOST = 128
#: Seconds for a request, and for taking its answer.
PATIENCE = 5.0
#: Largest head, and largest body, that is read, in bytes.
_MAX_HEAD, _MAX_BODY = 16 * 1024, 64 * 1024

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="robots" content="noindex">
<meta http-equiv="refresh" content="{again}"><title>Sessions</title></head>
<body><main><h1>Sessions</h1>
<p id="why" data-code="{code}">{message}</p><p>{hint}</p>
<p>Suspended sessions are kept, and running ones go on.</p></main></body></html>
"""


class StandIn:
    """The stand-in at listening sockets, which it shares and never closes."""

    def __init__(self, listening: Sequence[socket.socket], prefix: str) -> None:
        self.why = ""  #: what keeps the service away; empty: it is being started
        self._listening = listening
        self._prefix = prefix
        self._accepting: list[socket.socket] = []
        self._served: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Accept connections; idempotent.

        Not by asyncio's server: a caller whom that has accepted in the moment in which
        it is closed gets neither answer nor end (Python 3.11), and waits for minutes.
        """
        if not self._accepting:
            # Copies: closing them does not affect others that share the sockets.
            self._accepting = [each.dup() for each in self._listening]
            for each in self._accepting:
                each.setblocking(False)
                asyncio.get_running_loop().add_reader(each, self._accept, each)

    def end(self) -> None:
        """Stop accepting; others that share the socket continue."""
        for each in self._accepting:
            asyncio.get_running_loop().remove_reader(each)
            each.close()
        self._accepting.clear()

    def _accept(self, accepting: socket.socket) -> None:
        try:
            connection, _ = accepting.accept()
        except OSError:
            return  # another one that shares the socket has it, or the caller has gone
        task = asyncio.ensure_future(self._serve(connection))
        self._served.add(task)
        task.add_done_callback(self._served.discard)

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            reader, writer = await asyncio.open_connection(
                sock=connection, limit=_MAX_HEAD
            )
        except OSError:  # the caller has gone
            connection.close()
            return
        try:
            if len(self._served) <= MOST:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE):
                        await self._answer(reader, writer)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass  # no HTTP, or the caller has gone
        except asyncio.LimitOverrunError:
            pass  # a head that is not needed
        finally:
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ", 2)
        # Unread bytes would make the kernel reset the connection under our answer.
        if length := min(int(_header(lines, "Content-Length") or 0), _MAX_BODY):
            await reader.readexactly(length)
        status, kind, body = self._answer_for(target.partition("?")[0])
        head_lines = [
            f"HTTP/1.1 {status}",
            f"Content-Type: {kind}; charset=utf-8",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "Retry-After: 2",
            "X-Content-Type-Options: nosniff",
            "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
            "Connection: close",
        ]
        head_lines.append("\r\n")
        writer.write(
            "\r\n".join(head_lines).encode() + (b"" if method == "HEAD" else body)
        )
        await writer.drain()

    def _answer_for(self, path: str) -> tuple[str, str, bytes]:
        """The answer to a path: status, type and body."""
        if path == f"{self._prefix}healthz":
            return "200 OK", "application/json", _json({"version": __version__})
        why = self.why
        reason = Reason.SERVICE_BROKEN if why else Reason.SERVICE_STARTING
        message = reason.sentence(why=why)
        if not path.startswith(self._prefix) or path.startswith(
            (f"{self._prefix}api/", f"{self._prefix}readyz", f"{self._prefix}metrics")
        ):
            failure = {
                "code": reason.value,
                "message": message,
                "hint": reason.hint,
                "retryable": reason.retryable,
            }
            return "503 Service Unavailable", "application/json", _json(failure)
        page = _PAGE.format(
            again=30 if why else 2,
            code=escape(reason.value),
            message=escape(message),
            hint=escape(reason.hint),
        )
        ours = "200 OK" if path == self._prefix else "503 Service Unavailable"
        return ours, "text/html", page.encode()


def _header(lines: list[str], wanted: str) -> str:
    """A field of the head; empty where it is not there."""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == wanted.lower():
            return value.strip()
    return ""


def _json(value: dict[str, object]) -> bytes:
    return json.dumps(value).encode()

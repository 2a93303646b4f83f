"""Makes a restored server see its users again before its cullers see the clock.

Called by the restore while the tree is still stopped. Cullers inside a Jupyter server
compare the wall clock, which went on during the suspension, with the time of the last
activity: ``cull_idle_timeout`` would end a kernel seconds after it came back, and
``shutdown_no_activity_timeout`` the server. The kernel of the operating system accepts
connections for a stopped listener, so the requests are queued here *before* the tree
goes on; they are the first thing that the server reads, and a culler's timer, which
runs on the monotonic clock that stood still, has nothing overdue by then. It never
reads a user's data and runs no user's code: the message is ``is_complete_request``
with an empty text.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import select
import socket
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from jupyterhub_gpu_reclaim.metrics.jupyter import Address

_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 1.0
#: What a kernel answers to our message, somewhere in a frame.
_ANSWER = b"is_complete_reply"
_TAIL_BYTES = 1 << 17
_TEXT_FRAME = 0x81
_MASKED = 0x80


class WakeUp:
    """Connections that wait for the server; a context manager, closed when it is left.

    They must stay open until the server has handled them: an open connection is what
    keeps a kernel from being culled until its message has come back.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._sockets: list[socket.socket] = []
        self._waiting: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in self._sockets:
            one.close()
        self._sockets.clear()

    def queue(self, kernels: Iterable[str], terminals: Iterable[str]) -> int:
        """Queue the requests; the number that the listener's queue took.

        A listener that takes none is no error: the session then merely stands as it
        would stand without us.
        """
        took = int(self._send(self._get("api/status", {})))
        for kernel in kernels:
            took += self._send(self._kernel(kernel), wait=True)
        for name in terminals:
            path = f"terminals/websocket/{quote(name)}"
            took += self._send(self._get(path, _upgrade()))
        return took

    def wait(self, seconds: float) -> bool:
        """Wait until every kernel's message has come back; whether all have.

        A kernel that computes answers later. It is not culled for that, so nobody
        waits for it longer than this.
        """
        deadline = time.monotonic() + seconds
        seen: dict[socket.socket, bytes] = dict.fromkeys(self._waiting, b"")
        while seen:
            patience = max(0.0, deadline - time.monotonic())
            ready = select.select(list(seen), [], [], patience)[0]
            if not ready:
                return False
            for one in ready:
                with contextlib.suppress(OSError):
                    data = one.recv(65536)
                    seen[one] = (seen[one] + data)[-_TAIL_BYTES:]
                    if data and _ANSWER not in seen[one]:
                        continue
                del seen[one]
        return True

    def _send(self, data: bytes, *, wait: bool = False) -> bool:
        try:
            one = socket.create_connection(
                ("127.0.0.1", self._address.port), timeout=_CONNECT_SECONDS
            )
        except OSError as error:
            _log.info("- the restored server's queue takes no wake-up: %s", error)
            return False
        self._sockets.append(one)
        with contextlib.suppress(OSError):
            one.sendall(data)
            if wait:
                self._waiting.append(one)
            return True
        return False

    def _get(self, path: str, headers: dict[str, str]) -> bytes:
        lines = [
            f"GET {self._address.prefix}{path} HTTP/1.1",
            f"Host: 127.0.0.1:{self._address.port}",
            f"Authorization: token {self._address.token}",
            *(f"{name}: {value}" for name, value in headers.items()),
            "\r\n",
        ]
        return "\r\n".join(lines).encode()

    def _kernel(self, kernel: str) -> bytes:
        """Open a kernel's channels and ask whether nothing is a complete statement.

        That is a message which Jupyter counts as use, and which runs nothing.
        """
        session = uuid.uuid4().hex
        path = f"api/kernels/{quote(kernel)}/channels?session_id={session}"
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "is_complete_request",
            "session": session,
            "username": "",
            "version": "5.3",
            "date": datetime.now(UTC).isoformat(),
        }
        message = {
            "channel": "shell",
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": {"code": ""},
            "buffers": [],
        }
        return self._get(path, _upgrade()) + _frame(msgspec.json.encode(message))


def _upgrade() -> dict[str, str]:
    """The headers of a WebSocket's opening handshake (RFC 6455, 4.1)."""
    return {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }


def _frame(payload: bytes) -> bytes:
    """One masked text frame (RFC 6455, 5.2) of fewer than 65,536 bytes."""
    mask = os.urandom(4)
    length = len(payload)
    if length < 126:
        head = bytes([_TEXT_FRAME, _MASKED | length])
    else:
        head = bytes([_TEXT_FRAME, _MASKED | 126]) + length.to_bytes(2, "big")
    body = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    return head + mask + body

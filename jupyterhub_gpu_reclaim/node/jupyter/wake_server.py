"""Shows a restored server its users' activity before its cullers look at the clock.

It runs while the tree is still stopped. Cullers inside a Jupyter server compare the
wall clock, which went on during the suspension, with the time of the last activity:
``cull_idle_timeout`` would end a kernel seconds after it came back, and
``shutdown_no_activity_timeout`` the server. The operating system accepts connections
for a stopped listener, so the requests are queued here *before* the tree continues.
They are the first thing that server and kernels read, and a culler's timer, which runs
on the monotonic clock that stood still, is hardly ever due in those milliseconds. Where
a kernel culler is due, ``thaw_order`` enforces the order. It reads no user data, runs
no user code, and takes no output away.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from jupyterhub_gpu_reclaim.linux import netns
from jupyterhub_gpu_reclaim.linux.poll import readable
from jupyterhub_gpu_reclaim.node.jupyter import kernel_message
from jupyterhub_gpu_reclaim.sampling.jupyter_api import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from jupyterhub_gpu_reclaim.node.jupyter.kernel_message import Connection
    from jupyterhub_gpu_reclaim.sampling.jupyter_api import Address

_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 1.0
#: All connections together; those of an honest server take milliseconds. A listener
#: that is stopped takes about a hundred, and how many are wanted is a user's word.
_QUEUE_SECONDS = 10.0
_TAIL_BYTES = 1 << 16
#: More kernels and terminals than a user has; the agent's descriptors are few.
_MAX_SOCKETS = 512


class WakeUp:
    """Connections that wait for the session; a context manager, closed on leaving."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._sockets: list[socket.socket] = []
        self._kernels: dict[socket.socket, Connection] = {}
        #: What those have said last that have not answered yet.
        self._awaited: dict[socket.socket, bytes] = {}
        self._deadline = 0.0

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

    def queue(self, kernels: Iterable[Connection], terminals: Iterable[str]) -> None:
        """Queue what is to be said.

        A listener that takes nothing is no error: the session then merely stands as
        it would stand without us.
        """
        port = self._address.port
        self._deadline = time.monotonic() + _QUEUE_SECONDS
        self._send(port, self._get("api/status", {}))
        for name in terminals:
            path = f"terminals/websocket/{quote(name)}"
            self._send(port, self._get(path, _upgrade()))
        for kernel in kernels:
            sent = self._send(kernel.shell_port, kernel_message.greeting())
            if sent is not None:
                self._kernels[sent] = kernel
                self._awaited[sent] = b""

    @property
    def kernels(self) -> int:
        """How many of them we have a connection to."""
        return len(self._kernels)

    def wait(self, seconds: float) -> bool:
        """Send every kernel its message, and wait; return whether all answered.

        A kernel that computes answers later and is not culled for that, so it is not
        waited for any longer. Another call continues where this one ended.
        """
        deadline = time.monotonic() + seconds
        seen = self._awaited
        while seen:
            # One that never stops talking must not keep us either.
            left = deadline - time.monotonic()
            ready = readable(list(seen), left) if left > 0 else []
            if not ready:
                return False
            for one in ready:
                data = _receive(one)
                seen[one] = (seen[one] + data)[-_TAIL_BYTES:]
                if kernel_message.READY in seen[one]:
                    seen[one] = b""
                    _say(one, kernel_message.message(self._kernels[one]))
                elif not data or kernel_message.ANSWER in seen[one]:
                    del seen[one]
        return True

    def _send(self, port: int, data: bytes) -> socket.socket | None:
        patience = min(_CONNECT_SECONDS, self._deadline - time.monotonic())
        if patience <= 0 or len(self._sockets) >= _MAX_SOCKETS:
            return None
        try:
            one = self._connect(port, patience)
        except OSError as error:
            _log.info("- port %d takes no wake-up: %s", port, error)
            return None
        self._sockets.append(one)
        _say(one, data)
        return one

    def _connect(self, port: int, seconds: float) -> socket.socket:
        """A connection to a port of the session, on its own loopback."""
        where = self._address
        one = netns.make_socket(
            where.pid or os.getpid(),
            socket.AF_INET,
            socket.SOCK_STREAM,
            start=where.start or None,
        )
        try:
            one.settimeout(seconds)
            one.connect((LOOPBACK, port))
        except BaseException:
            one.close()
            raise
        return one

    def _get(self, path: str, headers: dict[str, str]) -> bytes:
        lines = [
            f"GET {self._address.prefix}{path} HTTP/1.1",
            f"Host: {LOOPBACK}:{self._address.port}",
            f"Authorization: token {self._address.token}",
            *(f"{name}: {value}" for name, value in headers.items()),
            "\r\n",
        ]
        return "\r\n".join(lines).encode()


def _say(one: socket.socket, data: bytes) -> None:
    """Send it; a listener that has gone is no error."""
    with contextlib.suppress(OSError):
        one.sendall(data)


def _receive(one: socket.socket) -> bytes:
    """What has come; nothing when the other side has closed."""
    with contextlib.suppress(OSError):
        return one.recv(_TAIL_BYTES)
    return b""


def _upgrade() -> dict[str, str]:
    """The headers of a WebSocket's opening handshake (RFC 6455, 4.1)."""
    return {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }

"""Wakes a restored Jupyter server before its cullers look at the clock.

Cullers in a server compare the wall clock, which went on during the suspension, with
the time of the last activity. The system accepts connections for a stopped listener, so
:class:`WakeUp` queues requests *before* the tree continues: they are the first thing
that server and kernels read, and :func:`thaw_server_last` has the kernels' answers in
the server's queues when its event loop turns for the first time.

Formats: ZMTP 3.0 (rfc.zeromq.org/spec/23) with the NULL mechanism, and the Jupyter
wire protocol (jupyter-client.readthedocs.io, "messaging").
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import logging
import os
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.linux import netns, ptrace
from jupyterhub_gpu_reclaim.linux.descriptors import readable
from jupyterhub_gpu_reclaim.sampling.jupyter_api import LOOPBACK

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Mapping

    from jupyterhub_gpu_reclaim.checkpoint.tree.restore import RestoreResult
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot
    from jupyterhub_gpu_reclaim.node.jupyter.connection import ConnectionFile
    from jupyterhub_gpu_reclaim.node.requirements import HostRequirements
    from jupyterhub_gpu_reclaim.sampling.jupyter_api import ServerAddress

#: Command by which a kernel says that it takes messages (ZMTP).
KERNEL_READY = b"\x05READY"
#: Type of a kernel's answer, somewhere in a frame.
KERNEL_ANSWER = b"is_complete_reply"

_MORE, _LONG = 1, 2
_SIGNATURES = {"hmac-sha256": hashlib.sha256, "hmac-sha512": hashlib.sha512}
#: A client's. libzmq drops a connection that says more before the kernel's ``READY``.
_GREETING = (
    *(b"\xff", bytes(8), b"\x7f\x03\x00", b"NULL".ljust(20, b"\0"), bytes(32)),
    *(b"\x04\x1c\x05READY\x0bSocket-Type", b"\x00\x00\x00\x06DEALER"),
)


def kernel_request(connection: ConnectionFile) -> bytes:
    # On the shell port "is nothing complete?": that runs no code, and Jupyter counts
    # the answer as use. Not through the server's WebSocket, because a second client
    # there makes the server drop the output that it keeps for a disconnected user.
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "is_complete_request",
        "session": uuid.uuid4().hex,
        "username": "",
        "version": "5.3",
        "date": datetime.now(UTC).isoformat(),
    }
    parts = [msgspec.json.encode(header), b"{}", b"{}", b'{"code":""}']
    frames = [b"<IDS|MSG>", _signature(connection, parts), *parts]
    *first, last = frames
    return b"".join(_frame(one, _MORE) for one in first) + _frame(last, 0)


def _signature(connection: ConnectionFile, parts: list[bytes]) -> bytes:
    kind = _SIGNATURES.get(connection.signature_scheme)
    if not connection.key or kind is None:
        return b""
    return hmac.new(connection.key.encode(), b"".join(parts), kind).hexdigest().encode()


def _frame(body: bytes, flags: int) -> bytes:
    if len(body) > 255:
        return bytes([flags | _LONG]) + len(body).to_bytes(8, "big") + body
    return bytes([flags, len(body)]) + body


_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 1.0
#: All connections together; those of an honest server take milliseconds. A listener
#: that is stopped takes about a hundred, and how many are wanted is a user's word.
_QUEUE_SECONDS = 10.0
_TAIL_BYTES = 1 << 16
#: More kernels and terminals than a user has; the agent's descriptors are few.
_MAX_SOCKETS = 512


class WakeUp(contextlib.ExitStack):
    """Connections that wait for the session, closed on leaving."""

    def __init__(self, address: ServerAddress) -> None:
        super().__init__()
        self._address = address
        self._left = _MAX_SOCKETS
        #: Kernels with their ids.
        self._kernels: dict[socket.socket, tuple[str, ConnectionFile]] = {}
        #: Last bytes of kernels that have not answered yet.
        self._awaited: dict[socket.socket, bytes] = {}
        self._deadline = 0.0

    def queue(
        self, kernels: Mapping[str, ConnectionFile], terminals: Iterable[str]
    ) -> None:
        """Queue requests to the server, to kernels by their ids and to terminals."""
        # A listener that accepts nothing is no error: all is then as without us.
        port = self._address.port
        self._deadline = time.monotonic() + _QUEUE_SECONDS
        self._send(port, self._get("api/status", {}))
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        }
        for name in terminals:
            path = f"terminals/websocket/{quote(name)}"
            self._send(port, self._get(path, upgrade))
        for name, kernel in kernels.items():
            sent = self._send(kernel.shell_port, b"".join(_GREETING))
            if sent is not None:
                self._kernels[sent] = name, kernel
                self._awaited[sent] = b""

    @property
    def kernels(self) -> int:
        return len(self._kernels)

    @property
    def silent(self) -> frozenset[str]:
        """Those of them that have not answered; not to be called during a wait."""
        return frozenset(self._kernels[one][0] for one in self._awaited)

    def wait(self, seconds: float) -> bool:
        """Send every kernel its message, and wait; return whether all answered."""
        # A kernel that computes answers later and is not culled: nobody waits for it.
        # Another call continues where this one ended.
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
                if KERNEL_READY in seen[one]:
                    seen[one] = b""
                    _say(one, kernel_request(self._kernels[one][1]))
                elif not data or KERNEL_ANSWER in seen[one]:
                    del seen[one]
        return True

    def _send(self, port: int, data: bytes) -> socket.socket | None:
        patience = min(_CONNECT_SECONDS, self._deadline - time.monotonic())
        if patience <= 0 or not self._left:
            return None
        try:
            where = self._address
            one = netns.connect(where.pid, port, start=where.start, seconds=patience)
        except OSError as error:
            _log.info("- cannot wake the program on port %d: %s", port, error)
            return None
        self._left -= 1
        self.enter_context(one)
        _say(one, data)
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
    # The listener may have gone.
    with contextlib.suppress(OSError):
        one.sendall(data)


def _receive(one: socket.socket) -> bytes:
    # Nothing when the other side has closed.
    with contextlib.suppress(OSError):
        return one.recv(_TAIL_BYTES)
    return b""


#: An idle kernel answers within milliseconds. Whether a kernel that computes will is
#: unknown, and its user waits for the server.
_HOLD_SECONDS: Final = 0.5
#: What a kernel says to all comes by another of its threads than the answer to us, and
#: through a thread of the server: at least this long after it, or as long as the
#: answers took, where all of that is slow.
_SETTLE_SECONDS: Final = 0.05


def thaw_server_last(
    wake: WakeUp, result: RestoreResult, world: HostRequirements
) -> None:
    """Thaw the tree, the server's loop last; blocks for 2 seconds at most.

    Raises:
        ReclaimError: as ``checkpoint.tree.restore.proceed``.
    """
    # The loop has to see the answers before it looks at the clock. So the server's
    # first thread, which runs it, is held while its other threads take the answers in,
    # and it restarts the wait in which it was captured (``kinds.waits``). If the
    # agent ends meanwhile, the kernel releases the thread.
    with _held(result.tree, world.server if wake.kernels else 0) as is_held:
        proceed(result, world.stopped)
        if is_held:
            begun = time.monotonic()
            complete = wake.wait(_HOLD_SECONDS)
            took = time.monotonic() - begun
            time.sleep(max(_SETTLE_SECONDS, took if complete else 0.0))


@contextlib.contextmanager
def _held(tree: Snapshot, server: int) -> Iterator[bool]:
    """Hold the server's first thread inside the block; yields whether it is held."""
    pids = [process.pid for process in tree.processes if process.ns_pid == server]
    with contextlib.ExitStack() as stack:
        try:
            for pid in pids:
                # It is stopped, so that there will be no others.
                others = set(ptrace.tasks(pid)) - {pid}
                held = ptrace.standing(pid, but=others, seconds=_HOLD_SECONDS)
                stack.enter_context(held)
        except ptrace.TraceFailed as error:
            _log.info("- the server cannot be thawed after its kernels: %s", error)
            pids = []
        yield bool(pids)

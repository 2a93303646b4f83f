"""Sends one message to a Jupyter kernel's shell port: "is nothing complete?".

It does not go through the server's WebSocket, because a second client there makes the
server drop the output that it keeps for a user who was disconnected. The message
(``is_complete_request`` with an empty text) runs no code, and Jupyter counts the
kernel's answer as use. The kernel's connection file is written by the user, so it is
not trusted; nothing but this message is sent.

Formats: ZMTP 3.0 (rfc.zeromq.org/spec/23) with the NULL mechanism, and the Jupyter
wire protocol (jupyter-client.readthedocs.io, "messaging").
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.linux import process_environment
from jupyterhub_gpu_reclaim.linux.beneath import open_file_in_root, open_root

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What a kernel says when it takes messages.
READY = b"\x05READY"
#: What a kernel answers, somewhere in a frame.
ANSWER = b"is_complete_reply"

_MAX_FILE_BYTES = 64 * 1024
_MORE, _LONG, _COMMAND = 1, 2, 4
_SIGNATURES = {"hmac-sha256": hashlib.sha256, "hmac-sha512": hashlib.sha512}
_GREETING = (
    b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
)


class Connection(Value, frozen=True, kw_only=True):
    """A kernel's connection file, as far as we need it."""

    shell_port: int
    key: str = ""
    signature_scheme: str = "hmac-sha256"
    transport: str = "tcp"


def find_connection(
    init_pid: int, pids: Iterable[int], kernel: str
) -> Connection | None:
    """The connection of the kernel with that id; None where it is not to be found.

    Args:
        init_pid: of the session, whose root the path is looked up in.
        pids: host pids of the tree; one of them was started with the file's path.
        kernel: the kernel's id, as the server reports it.
    """
    name = re.escape(os.fsencode(kernel))
    pattern = re.compile(rb"(?:^|=)(/[^\0]*/kernel-" + name + rb"\.json)$")
    for pid in pids:
        try:
            found = process_environment.words(pid, "cmdline")
        except TimeoutError:
            return None  # this user's programs keep us waiting: no favour for them
        except OSError:
            continue
        for word in found:
            match = pattern.search(word)
            if match is not None:
                return _read(init_pid, match[1])
    return None


def greeting() -> bytes:
    """A client's greeting.

    More may follow only after the kernel's ``READY``: libzmq drops a connection whose
    first message comes before its own handshake is out.
    """
    ready = READY + _property(b"Socket-Type", b"DEALER")
    return _GREETING + _frame(ready, _COMMAND)


def message(connection: Connection) -> bytes:
    """The request, signed with the kernel's key."""
    parts = [_json(_header()), b"{}", b"{}", _json({"code": ""})]
    frames = [b"<IDS|MSG>", _signature(connection, parts), *parts]
    *first, last = frames
    return b"".join(_frame(one, _MORE) for one in first) + _frame(last, 0)


def _read(init_pid: int, path: bytes) -> Connection | None:
    try:
        root = open_root(f"/proc/{init_pid}/root")
        try:
            descriptor = open_file_in_root(root, path)
        finally:
            os.close(root)
        with os.fdopen(descriptor, "rb") as file:
            found = codec.decode(file.read(_MAX_FILE_BYTES), Connection)
    except (OSError, BadRequest):
        return None
    usable = found.transport == "tcp" and 0 < found.shell_port < 65536
    return found if usable else None


def _header() -> dict[str, str]:
    return {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "is_complete_request",
        "session": uuid.uuid4().hex,
        "username": "",
        "version": "5.3",
        "date": datetime.now(UTC).isoformat(),
    }


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _signature(connection: Connection, parts: list[bytes]) -> bytes:
    kind = _SIGNATURES.get(connection.signature_scheme)
    if not connection.key or kind is None:
        return b""
    return hmac.new(connection.key.encode(), b"".join(parts), kind).hexdigest().encode()


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def _frame(body: bytes, flags: int) -> bytes:
    if len(body) > 255:
        return bytes([flags | _LONG]) + len(body).to_bytes(8, "big") + body
    return bytes([flags, len(body)]) + body

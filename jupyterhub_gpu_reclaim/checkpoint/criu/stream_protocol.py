"""Encodes and decodes the messages of CRIU's ``--stream`` protocol.

Input is not trusted: a ``ValueError`` says what was wrong.

The protocol (criu/img-streamer.c): CRIU sends ``u32 size`` and a protobuf message
``{1: filename}``; when it restores it reads ``u32 size`` and ``{1: exists}``; then it
passes its end of a pipe over with SCM_RIGHTS and one byte.
"""

from __future__ import annotations

import array
import socket
import struct

#: A request holds a file name; more is not CRIU.
REQUEST_LIMIT = 4096


def reply(*, exists: bool) -> bytes:
    """Whether there is such a file: ``{1: exists}`` behind its length."""
    return struct.pack("=IBB", 2, 0x08, exists)


def _receive(connection: socket.socket, size: int) -> bytes:
    """Exactly that many bytes; empty when the other side has ended instead."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            if data:
                raise ValueError("cut off in a request")
            return b""
        data += part
    return data


def request(connection: socket.socket) -> str | None:
    """The file name that CRIU asks for; None when it has ended.

    Raises:
        ValueError: that was not a request.
    """
    head = _receive(connection, 4)
    if not head:
        return None
    (size,) = struct.unpack("=I", head)
    if not 2 <= size <= REQUEST_LIMIT:
        raise ValueError(f"a request of {size} bytes")
    body = _receive(connection, size)
    # {1: filename}: tag 0x0a, the length as a varint, the name.
    length, at, shift = 0, 1, 0
    while at < len(body) and shift < 21:
        length |= (body[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not body[at - 1] & 0x80:
            break
    if body[:1] != b"\x0a" or at + length != len(body):
        raise ValueError("a request without a file name")
    return body[at:].decode("ascii")


def receive_pipe(connection: socket.socket) -> int:
    """The end of a pipe that CRIU passes over.

    Raises:
        ValueError: something else came.
    """
    room = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
    data, ancillary, _, _ = connection.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            return array.array("i", payload[:4])[0]
    raise ValueError("no pipe came" if data else "cut off before a pipe came")

"""Classifies unread messages on a kernel's channel.

Messages come as frames of ZMTP (rfc.zeromq.org/spec/23) in plain; the Jupyter wire
protocol (jupyter-client.readthedocs.io, "messaging") puts their kind into the first
frame after the signature. A page sends some kinds by itself
(``common/kernel_messages.py``). Every other kind wakes, unknown ones too, and so does
anything else. Nothing is verified: a kernel checks signatures itself, and anyone who
can write to its socket may wake it anyhow.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from jupyterhub_gpu_reclaim.common import decoders
from jupyterhub_gpu_reclaim.common.kernel_messages import QUIET_REQUESTS

#: Commands of ZMTP that a connection sends while nobody says anything.
_QUIET_COMMANDS: Final = frozenset(
    {b"PING", b"PONG", b"ERROR", b"SUBSCRIBE", b"CANCEL"}
)
_MORE, _LONG, _COMMAND, _KNOWN = 1, 2, 4, 7
_DELIMITER: Final = b"<IDS|MSG>"
#: Identities before the delimiter, the signature after it, then the header.
_MOST_BEFORE: Final = 4
#: No header is larger, and no identity nor command.
_MOST_HEADER_BYTES: Final = 1 << 16
_MOST_SMALL_BYTES: Final = 1 << 10
_FOREIGN: Final = "data of another protocol"


class Reading(NamedTuple):
    kind: str  #: of the first message that wakes; empty: none does so far
    offset: int  #: where the first message begins that is not complete


class _Header(msgspec.Struct):
    msg_type: str


class _Frame(NamedTuple):
    flags: int
    body: bytes  #: as much of it as is there
    size: int  #: of all of it
    end: int


def read(data: bytes, offset: int = 0) -> Reading:
    """Look for a message that wakes; ``offset``: where one begins, from before."""
    while offset < len(data):
        kind, end = _read_message(data, offset)
        if kind:
            return Reading(kind, offset)
        if end is None:
            break
        offset = end
    return Reading("", offset)


def _read_message(data: bytes, start: int) -> tuple[str, int | None]:
    """Kind of a message if it wakes, and its end; None if that has not come yet."""
    at, before, header = start, 0, -1
    while (frame := _frame(data, at)) is not None:
        if frame.flags & ~_KNOWN:
            return _FOREIGN, None
        if frame.flags & _COMMAND:
            if (kind := _command_kind(frame)) or frame.end > len(data):
                return kind, None
            return "", frame.end
        if header < 0 and frame.body == _DELIMITER:
            header = before + 2
        elif header < 0 and (before >= _MOST_BEFORE or frame.size > _MOST_SMALL_BYTES):
            return _FOREIGN, None
        elif before == header and (kind := _header_kind(frame)):
            return kind, None
        if not frame.flags & _MORE:
            if before < header or header < 0:
                return _FOREIGN, None
            return "", frame.end if frame.end <= len(data) else None
        at, before = frame.end, before + 1
    return "", None


def _frame(data: bytes, at: int) -> _Frame | None:
    """The frame that begins there; None if its length has not come yet."""
    if at >= len(data):
        return None
    flags = data[at]
    length = 8 if flags & _LONG else 1
    body = at + 1 + length
    if body > len(data):
        return None
    size = int.from_bytes(data[at + 1 : body], "big")
    return _Frame(flags, data[body : body + size], size, body + size)


def _command_kind(frame: _Frame) -> str:
    """Kind of a command if it wakes: a client that has just connected."""
    if frame.size > _MOST_SMALL_BYTES:
        return _FOREIGN
    if not frame.body:
        return ""
    name = frame.body[1 : 1 + frame.body[0]]
    return "" if name in _QUIET_COMMANDS else "a new client"


def _header_kind(frame: _Frame) -> str:
    """The kind of a message that wakes; empty for others, and before it has come."""
    if frame.size > _MOST_HEADER_BYTES:
        return "a message with a long header"
    if len(frame.body) < frame.size:
        return ""
    try:
        kind = decoders.json_decoder(_Header).decode(frame.body).msg_type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "a message without a kind"
    return "" if kind in QUIET_REQUESTS else kind[:80]

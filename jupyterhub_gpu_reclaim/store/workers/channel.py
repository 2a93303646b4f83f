"""Messages and descriptors between the agent and one of its workers.

A message is one packet of a Unix socket, so that it comes whole or not at all; large
data travels as a descriptor of shared memory. Both ends are ours: nothing here is
hostile.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.packing.pack_writer import Recipe  # noqa: TC001 - msgspec's

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jupyterhub_gpu_reclaim.store.backend import Buffer

_MAX_BYTES = 65536
_MAX_DESCRIPTORS = 8


class Hello(msgspec.Struct, tag=True):
    """Worker: I am there."""

    pid: int


class Capture(msgspec.Struct, tag=True):
    """Agent: be a pack writer. Descriptors: counters, and the dedup index if any."""

    spec: dict[str, Any]
    recipe: Recipe
    lane: int
    row: int  #: of the meter


class TakePipe(msgspec.Struct, tag=True):
    """Agent: share this pipe. Descriptors: the pipe, token to read, token to write."""

    file: int


class Taken(msgspec.Struct, tag=True):
    """Worker: the pipe has ended, and what I had of it is written."""

    total: int  #: bytes of the file, 0 from workers that did not see the end


class Finish(msgspec.Struct, tag=True):
    """Agent: report, then settle everything."""

    seconds: float


class Reported(msgspec.Struct, tag=True):
    """Worker: here is my report, as a descriptor."""


class Settled(msgspec.Struct, tag=True):
    """Worker: what I have reported is durable, and reads back."""


class Copy(msgspec.Struct, tag=True):
    """Agent: copy until no ticket is left, and end.

    Descriptors: the job (``copy_job``), the meter, the tickets.
    """

    row: int  #: of the meter


class Copied(msgspec.Struct, tag=True):
    """Worker: no ticket is left."""


class Failed(msgspec.Struct, tag=True):
    """Worker: this has gone wrong, and I end."""

    reason: str
    detail: str
    facts: dict[str, Any]

    def error(self) -> StoreError:
        """The error that it was."""
        return StoreError(Reason.of(self.reason), detail=self.detail, **self.facts)


Message = (
    Hello
    | Capture
    | TakePipe
    | Taken
    | Finish
    | Reported
    | Settled
    | Copy
    | Copied
    | Failed
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """One message; the descriptors are duplicated by the kernel.

    Raises:
        OSError: the other side is gone.
    """
    socket.send_fds(end, [_encoder.encode(message)], descriptors)


def receive(end: socket.socket) -> tuple[Message, list[int]] | None:
    """One message and its descriptors, which are the caller's then; None at the end.

    Raises:
        OSError: the other side is gone, or the time is up.
    """
    data, descriptors, _, _ = socket.recv_fds(end, _MAX_BYTES, _MAX_DESCRIPTORS)
    if not data:
        return None
    return _decoder.decode(data), descriptors


def share(name: str, parts: Iterable[Buffer]) -> int:
    """A new descriptor of memory that holds these bytes."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            for part in parts:
                file.write(part)
    except BaseException:
        close_all([descriptor])
        raise
    return descriptor


def close_all(descriptors: Iterable[int]) -> None:
    """Close them; one that is closed already is fine."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)

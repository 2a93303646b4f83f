"""Messages, counters and shared memory between the agent and its workers.

A message is one packet of a Unix socket, so it comes whole or not at all; large data
travels as a descriptor of shared memory. Both ends are ours: nothing here is hostile.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import socket
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from jupyterhub_gpu_reclaim.common import decoders
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format.manifest import Body  # noqa: TC001 - msgspec's
from jupyterhub_gpu_reclaim.store.packing.pack_writer import BUFFER_BYTES, Recipe
from jupyterhub_gpu_reclaim.store.read.memory_restore import MOST_TICKETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_T = TypeVar("_T")
_MAX_BYTES = 65536
_MAX_DESCRIPTORS = 8
_ALIGNED_BYTES = 64

#: Length of a ticket in its pipe.
TICKET_BYTES = 4


class WorkerReady(msgspec.Struct, tag=True):
    """Worker: I am here."""

    pid: int


class BeginCapture(msgspec.Struct, tag=True):
    """Agent: be a pack writer. Descriptors: counters, and two of a last generation."""

    # Those are the blocks of it that may be referenced (`BaseBlocks`), and the verdicts
    # on them.

    spec: dict[str, Any]
    recipe: Recipe
    row: int  #: of the counters; the pack writer's number less one (0: the agent's own)


class TakeMemory(msgspec.Struct, tag=True):
    """Agent: read a process's memory. Descriptors: its pid and areas, and tickets."""

    file: int
    begin: int  #: where it stands in the file, a multiple of a chunk


class Finish(msgspec.Struct, tag=True):
    """Agent: report, then settle everything; two answers."""

    seconds: float


class BeginCopy(msgspec.Struct, tag=True):
    """Agent: copy until no ticket is left, and end."""

    # Descriptors: the job (`CopyJob`), the counters, the tickets.

    row: int  #: of the counters


class Done(msgspec.Struct, tag=True):
    """Worker: that is done. With a report comes its descriptor."""


class Failed(msgspec.Struct, tag=True):
    """Worker: this went wrong, and I end."""

    reason: str
    detail: str
    facts: dict[str, Any]

    def error(self) -> StoreError:
        return StoreError(Reason.of(self.reason), detail=self.detail, **self.facts)


Message = WorkerReady | BeginCapture | TakeMemory | Finish | BeginCopy | Done | Failed


class CopyJob(msgspec.Struct):
    """Order to copy; the index's table and the plan's rows are shared with it."""

    spec: dict[str, Any]
    body: Body
    tickets: list[int]


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = decoders.msgpack_decoder(Message)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """The kernel duplicates the descriptors; OSError: the other side is gone."""
    socket.send_fds(end, [_encoder.encode(message)], descriptors)


def receive(end: socket.socket) -> tuple[Message, list[int]] | None:
    """Message and descriptors, ours to close; None: the end; OSError: gone or late."""
    data, descriptors, _, _ = socket.recv_fds(end, _MAX_BYTES, _MAX_DESCRIPTORS)
    if not data:
        return None
    return _decoder.decode(data), descriptors


def share(name: str, head: object, *columns: NDArray[Any]) -> int:
    """A new descriptor of memory that holds a value and arrays; see :func:`shared`."""
    front = _encoder.encode((head, [column.shape for column in columns]))
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(len(front).to_bytes(4, "little") + front)
            for column in columns:
                file.write(bytes(-file.tell() % _ALIGNED_BYTES))
                # As they lie in memory: there may be hundreds of megabytes.
                file.write(np.ascontiguousarray(column).reshape(-1).view(np.uint8).data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def shared(
    descriptor: int, head: type[_T], *kinds: np.dtype[Any]
) -> tuple[_T, list[NDArray[Any]]]:
    """Map the memory of :func:`share`; the descriptor may be closed then."""
    memory = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    at = 4 + int.from_bytes(memory[:4], "little")
    decoder: Any = decoders.msgpack_decoder(tuple[head, list[list[int]]])  # type: ignore[valid-type]
    value, shapes = decoder.decode(memory[4:at])
    columns: list[NDArray[Any]] = []
    for kind, shape in zip(kinds, shapes, strict=True):
        at += -at % _ALIGNED_BYTES
        column = np.frombuffer(memory, kind, math.prod(shape), at)
        columns.append(column.reshape(shape))
        at += column.nbytes
    return value, columns


def tickets(count: int) -> int:
    """A new descriptor of a pipe with tickets from 0 on; at most MOST_TICKETS."""
    # All of them fit into the pipe at once.
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    os.write(theirs, np.arange(count, dtype="<u4").tobytes())
    os.close(theirs)
    return ours


def parts(length: int) -> int:
    """In how many parts so many bytes of memory are read; see :func:`part_of`."""
    return -(-length // _part_bytes(length))


def part_of(length: int, ticket: int) -> range:
    """Offsets of the bytes that a ticket stands for."""
    step = _part_bytes(length)
    return range(ticket * step, min(length, (ticket + 1) * step))


def _part_bytes(length: int) -> int:
    return BUFFER_BYTES * max(1, -(-length // (BUFFER_BYTES * MOST_TICKETS)))


def make_array(
    rows: int, kind: type[np.generic], *columns: int
) -> tuple[int, NDArray[Any]]:
    """A new descriptor of an array of zeros, and that array; all may write into it."""
    descriptor = os.memfd_create("array", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, rows * math.prod(columns) * np.dtype(kind).itemsize)
    return descriptor, map_array(descriptor, kind, *columns)


def map_array(descriptor: int, kind: type[np.generic], *columns: int) -> NDArray[Any]:
    """The descriptor may be closed then."""
    return np.frombuffer(mmap.mmap(descriptor, 0), kind).reshape(-1, *columns)


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)

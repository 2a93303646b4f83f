"""What a place that keeps objects must be able to do, and how it fails.

Called by the repository only. A backend knows nothing of checkpoints: it keeps named
bytes. Its calls block, and may come from several threads at once.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jupyterhub_gpu_reclaim.errors import StoreError
from jupyterhub_gpu_reclaim.reasons import Reason

#: What may be written: contiguous bytes, handed over without a copy.
Buffer = bytes | bytearray | memoryview


class Entry(NamedTuple):
    """One object that stands in a backend."""

    name: str
    length: int


class ObjectMissing(StoreError):
    """An object that was asked for does not stand there."""

    def __init__(self, name: str) -> None:
        super().__init__(Reason.CHECKPOINT_DAMAGED, why=f"{name} is missing")


class ObjectWriter(Protocol):
    """One object that is being written, by one thread at a time."""

    def write(self, data: Buffer) -> None:
        """Append all of it.

        Raises:
            StoreError: ``STORE_FULL`` or ``STORE_FAILED``; the object is lost.
        """

    def finish(self) -> None:
        """Make it durable; when this returns it survives a loss of power.

        Raises:
            StoreError: it may not survive; the object is lost.
        """

    def abandon(self) -> None:
        """Give it up and let go of what it holds; idempotent, never raises.

        What was written may stay as remains, until ``delete``.
        """


class Backend(Protocol):
    """Named bytes. Names are relative paths that the repository has confined."""

    def create(self, name: str) -> ObjectWriter:
        """Begin a new object.

        Raises:
            StoreError: an object of that name stands already, or no room.
        """

    def publish(self, name: str, data: bytes) -> None:
        """Put a small object, whole or not at all, durable on return.

        An unfinished one may leave remains under ``tmp/``, never under ``name``.

        Raises:
            StoreError: an object of that name stands already, or no room. It may
                stand nevertheless when only the last sync has failed.
        """

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end.

        Raises:
            ObjectMissing: there is no such object.
            StoreError: it cannot be read.
        """

    def length(self, name: str) -> int:
        """Bytes of that object.

        Raises:
            ObjectMissing: there is no such object.
        """

    def list(self, prefix: str) -> list[Entry]:
        """All objects whose name begins with ``prefix`` (ends in ``/``), by name."""

    def delete(self, name: str) -> None:
        """Remove it, durably; idempotent: not there is fine."""

    def free_bytes(self) -> int | None:
        """Room that is left, None where that cannot be known."""

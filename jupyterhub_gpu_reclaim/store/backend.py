"""The interface of a storage backend, and its errors.

A backend knows nothing of checkpoints: it keeps named bytes. Its calls block, and may
come from several threads at once.

::

    StoreError
    ├── ObjectMissing   no such object exists, for sure
    ├── ObjectExists    one of that name exists already; nothing was written
    └── Unavailable     a passing fault: nothing was written, the call may be repeated
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason

#: A backend as JSON, for another process; see ``backends.address.open_backend``.
Spec = dict[str, Any]

#: Contiguous bytes that may be written, handed over without a copy.
Buffer = bytes | bytearray | memoryview


class Entry(NamedTuple):
    name: str
    length: int


class ObjectMissing(StoreError):
    """The requested object does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(Reason.CHECKPOINT_DAMAGED, why=f"{name} is missing")


class ObjectExists(StoreError):
    """An object of that name exists already; it is unchanged."""

    def __init__(self, name: str) -> None:
        super().__init__(Reason.STORE_FAILED, why=f"{name} stands already")


class Unavailable(StoreError):
    """A passing fault; the call had no effect."""

    def __init__(
        self, why: str, *, detail: str = "", reason: Reason = Reason.STORE_UNREACHABLE
    ) -> None:
        super().__init__(reason, why=why, detail=detail)


class ObjectWriter(Protocol):
    """One object that is being written, by one thread at a time."""

    def write(self, data: Buffer) -> None:
        """Append all of it; the buffer may be reused on return.

        Raises:
            Unavailable: not this time; writing can be continued.
            StoreError: ``STORE_FULL`` or ``STORE_FAILED``; the object is lost.
        """

    def read_back(self, offset: int, buffer: memoryview) -> int | None:
        """Read back what was written so far, from where it is now."""
        # Fewer bytes than fit come only at the end; None where an object can be read
        # only after ``finish``.

    def finish(self) -> None:
        """Make it visible, whole, and durable: it then survives a loss of power."""
        # On a StoreError it may not survive: the object is lost.

    def abandon(self) -> None:
        """Give it up; idempotent, never raises. May leave remains in ``tmp/``."""


class Backend(Protocol):
    """Named bytes. Names are relative paths that the repository has confined.

    Any call may raise ``StoreError``; those named below mean something.
    """

    def create(self, name: str) -> ObjectWriter:
        """Begin an object of any size; raises ``ObjectExists``, as ``finish`` may."""
        # Of two that are finished at once, one may be lost without a word: names have
        # to be unique.

    def publish(self, name: str, data: bytes) -> None:
        """Put a small object, whole and durable; or raise ``ObjectExists``."""
        # An unfinished one may leave remains under ``tmp/``, never under ``name``. On a
        # StoreError it may stand nevertheless, when only the last sync has failed.

    def replace(self, name: str, data: bytes) -> None:
        """Replace a small object atomically; or raise ``ObjectMissing``."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes, fewer only at the end; or ``ObjectMissing``."""

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """Like :meth:`read`, into a buffer; fewer bytes than fit only at the end."""

    def length(self, name: str) -> int:
        """Its size in bytes; or raise ``ObjectMissing``."""

    def list(self, prefix: str) -> list[Entry]:
        """All objects whose name begins with ``prefix`` (ends in ``/``), by name."""

    def delete(self, name: str) -> None:
        """Remove it, durably; idempotent: not there is fine."""

    def free_bytes(self) -> int | None:
        """Room that is left; None if that is unknown."""

    def spec(self) -> Spec:
        """How another process opens the same, without secrets."""


def exists(backend: Backend, name: str) -> bool:
    try:
        backend.length(name)
    except ObjectMissing:
        return False
    return True


def publish_over(backend: Backend, name: str, data: bytes) -> None:
    """Publish, replacing one of that name; ``ObjectMissing``: it went meanwhile."""
    try:
        backend.publish(name, data)
    except ObjectExists:
        backend.replace(name, data)

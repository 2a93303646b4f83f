"""Base of backends that pass every call through one function, such as a retry.

``retry`` repeats calls this way; ``testing.faulty_backend`` refuses or counts them. The
proxy decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.store.backend import (
        Backend,
        Buffer,
        Entry,
        ObjectWriter,
        Spec,
    )

_T = TypeVar("_T")


class Caller(Protocol):
    """Does one call of a backend."""

    def __call__(self, work: Callable[[], _T], /) -> _T:
        """The answer of ``work``, which may be called several times, or never."""


class Around:
    """A backend, each of whose calls goes through a function of the caller's.

    Args:
        backend: does the work.
        call: does one call of it, as often as it likes, and answers for it.
    """

    def __init__(self, backend: Backend, call: Caller) -> None:
        self._backend = backend
        self._call = call

    def create(self, name: str) -> ObjectWriter:
        """Begin a new object; the calls of its writer go the same way."""
        return _WriterAround(self._call(lambda: self._backend.create(name)), self._call)

    def publish(self, name: str, data: bytes, *, needs: Sequence[Entry] = ()) -> None:
        """Put a small object."""
        self._call(lambda: self._backend.publish(name, data, needs=needs))

    def replace(self, name: str, data: bytes) -> None:
        """Put it in the place of another."""
        self._call(lambda: self._backend.replace(name, data))

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``."""
        return self._call(lambda: self._backend.read(name, offset, length))

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """The same into a buffer of the caller's."""
        return self._call(lambda: self._backend.read_into(name, offset, buffer))

    def length(self, name: str) -> int:
        """Bytes of that object."""
        return self._call(lambda: self._backend.length(name))

    def list(self, prefix: str) -> list[Entry]:
        """All objects below that prefix."""
        return self._call(lambda: self._backend.list(prefix))

    def delete(self, name: str) -> None:
        """Remove it."""
        self._call(lambda: self._backend.delete(name))

    def free_bytes(self) -> int | None:
        """Room that is left."""
        return self._call(self._backend.free_bytes)

    def spec(self) -> Spec | None:
        """That of the backend inside: ``address`` adds the proxies that it needs."""
        return self._backend.spec()


class _WriterAround:
    """See :class:`~.backend.ObjectWriter`."""

    def __init__(self, writer: ObjectWriter, call: Caller) -> None:
        self._writer = writer
        self._call = call

    def write(self, data: Buffer) -> None:
        """Append all of it."""
        self._call(lambda: self._writer.write(data))

    def read_back(self, offset: int, buffer: memoryview) -> int | None:
        """Read what was written."""
        return self._call(lambda: self._writer.read_back(offset, buffer))

    def finish(self) -> None:
        """Make it durable."""
        self._call(self._writer.finish)

    def abandon(self) -> None:
        """Give it up."""
        self._writer.abandon()

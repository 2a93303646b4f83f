"""CRIU's images of one tree: each parsed once, changed in place, and written once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

FILES: Final = "files.img"
T = TypeVar("T")


class Range(NamedTuple):
    offset: int
    length: int


class Piece(NamedTuple):
    """Bytes of a pages image and where they belong."""

    offset: int
    length: int
    pid: int
    address: int


class ImageSource(Protocol):
    """Source of CRIU's images; called from several threads at once.

    Everything it returns has been authenticated. It raises what the store raises.
    """

    def size(self, name: str) -> int | None: ...

    def stream(
        self, name: str, skip: Sequence[Range] = ()
    ) -> Iterable[bytes | memoryview]:
        """A file's bytes in order, without those ranges (ascending, not touching)."""

    def copy(
        self, pieces: Mapping[str, Sequence[Piece]], cancelled: Callable[[], bool]
    ) -> None:
        """Write pieces of files into stopped processes' memory, which is all zero.

        Those of a file ascend; all processes are of our own pid namespace. Once it is
        ``cancelled``, which is asked now and then, any error ends it.
        """


class SavedImages:
    """An ``ImageSource``, some of whose images differ.

    What :meth:`entries` has returned is written when the image is read next, so entries
    are changed before.
    """

    def __init__(
        self, source: ImageSource | None, changed: Mapping[str, bytes] | None = None
    ) -> None:
        self._source = source
        self._changed = dict(changed or {})
        self._parsed: dict[str, tuple[int, list[Any]]] = {}

    def read(self, name: str) -> bytes | None:
        return None if self.size(name) is None else b"".join(self.stream(name))

    def replace(self, name: str, data: bytes) -> None:
        self._parsed.pop(name, None)
        self._changed[name] = data

    def decoded(self, name: str, kind: type[T]) -> T:
        """An image of ours (``codec``).

        Raises:
            RestoreFailed: it does not read (``checkpoint_damaged``).
        """
        try:
            return codec.decode(self.read(name) or b"", kind)
        except BadRequest as error:
            raise images.damaged(f"{name} cannot be read ({error})") from None

    def entries(self, name: str, magic: int, kind: str) -> list[Any]:
        """The messages of an image, to be changed in place; empty where there is none.

        Raises:
            RestoreFailed: they do not read (``checkpoint_damaged``).
        """
        if name not in self._parsed:
            image = self.read(name)
            payloads = () if image is None else images.split(image, magic)
            found = [images.parse(kind, payload) for payload in payloads]
            self._parsed[name] = magic, found
        return self._parsed[name][1]

    def tasks(self) -> list[Any]:
        """Its processes, parents before children (``pstree_entry``)."""
        return self.entries("pstree.img", images.PSTREE_MAGIC, "pstree_entry")

    def core(self, number: int) -> Any:
        """One thread (``core_entry``), by its number; None where there is none."""
        return self._one(f"core-{number}.img", images.CORE_MAGIC, "core_entry")

    def memory(self, pid: int) -> Any:
        """The areas of a process (``mm_entry``); None where it has ended."""
        return self._one(f"mm-{pid}.img", images.MM_MAGIC, "mm_entry")

    def cores(self) -> Iterator[tuple[Any, list[Any]]]:
        for task in self.tasks():
            found = map(self.core, task.threads or [task.pid])
            yield task, [core for core in found if core is not None]

    def names(self) -> set[str]:
        return {*self._changed, *self._parsed}

    def written(self) -> dict[str, bytes]:
        """Every image that differs from the source's."""
        for name in list(self._parsed):
            self._write(name)
        return dict(self._changed)

    def size(self, name: str) -> int | None:
        self._write(name)
        if name in self._changed:
            return len(self._changed[name])
        return None if self._source is None else self._source.size(name)

    def stream(
        self, name: str, skip: Sequence[Range] = ()
    ) -> Iterable[bytes | memoryview]:
        self._write(name)
        if name in self._changed:
            return [self._changed[name]]
        assert self._source is not None, name
        return self._source.stream(name, skip)

    def copy(
        self, pieces: Mapping[str, Sequence[Piece]], cancelled: Callable[[], bool]
    ) -> None:
        assert self._source is not None
        self._source.copy(pieces, cancelled)

    def _one(self, name: str, magic: int, kind: str) -> Any:
        if name not in self._parsed and self.size(name) is None:
            return None
        found = self.entries(name, magic, kind)
        if len(found) != 1:
            raise images.damaged(f"an image holds {len(found)} entries, not one")
        return found[0]

    def _write(self, name: str) -> None:
        if name not in self._parsed:
            return
        magic, entries = self._parsed.pop(name)
        if entries or self.size(name) is not None:
            self._changed[name] = images.join(magic, map(images.serialize, entries))

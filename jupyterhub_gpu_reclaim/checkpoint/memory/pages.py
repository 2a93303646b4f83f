"""Plans which memory bypasses CRIU in a restore, and rewrites CRIU's images for it.

CRIU fills a process' memory in one thread, one page fault after the other. Large areas
are therefore taken out of its images, mapped empty by it, and filled by many workers
while the process is stopped (``fill``). ``address_space`` says which areas are free for
that. Nothing here touches a process.

Filling memory in huge pages is several times cheaper, and on most machines a process
has to ask for them. Areas that were nearly full are therefore advised (madvise(2)) as
if the process had asked: this cannot make it use more memory than it did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.images import Area
from jupyterhub_gpu_reclaim.checkpoint.memory.address_space import (
    GUARD,
    PAGE,
    TOP,
    Span,
    damaged,
    free_spans,
    overlap,
    read_processes,
    subtract,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: Below this a piece is not worth its price; bytes. Of a Python session with pandas and
#: scikit-learn (173 MB) 48 % lie in runs of 1 MiB and more, 94 % in runs of 256 KiB,
#: 95 % (107 pieces) in runs of this size, 96 % (310) in runs of one page.
SMALLEST: Final = 64 << 10

#: What the kernel fills at once where it may; smaller areas hold none.
HUGE_PAGE: Final = 2 << 20
#: An area is advised when at most one page in so many was not in use.
_NEARLY_FULL: Final = 20
# madvise(2), as bits of a vma_entry's madv.
_HUGEPAGE, _NOHUGEPAGE = 1 << 14, 1 << 15
_KNOWN_FLAGS: Final = images.IN_PARENT | images.LAZY | images.PRESENT


class Range(NamedTuple):
    """Bytes of a file."""

    offset: int
    length: int


class Piece(NamedTuple):
    """Bytes of a pages image and where they belong."""

    offset: int
    length: int
    pid: int
    address: int


class Stop(Protocol):
    """Says that something has been cancelled; readable from then on."""

    @property
    def is_set(self) -> bool:
        """Whether it has."""

    def fileno(self) -> int:
        """For poll(2)."""


class Source(Protocol):
    """Where CRIU's images come from; called from several threads at once.

    Everything it returns has been authenticated. It raises what the store raises.
    """

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""

    def stream(
        self, name: str, skip: Sequence[Range] = ()
    ) -> Iterable[bytes | memoryview]:
        """A file's bytes in order, without those ranges (ascending, not touching)."""

    def copy(self, name: str, pieces: Sequence[Piece], stop: Stop) -> None:
        """Write pieces of a file into a stopped process' memory, which is all zero.

        Args:
            name: of the file.
            pieces: in ascending order, all of one process of our own pid namespace.
            stop: ends it soon, by any error.
        """


@dataclass(frozen=True)
class Plan:
    """What bypasses CRIU.

    Attributes:
        files: those of its images that are rewritten.
        pieces: pages image → what is copied by others, in ascending order, all of one
            process, whose ``pid`` is one of the session's namespace.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    pieces: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bytes of all pieces."""
        return sum(one.length for pieces in self.pieces.values() for one in pieces)

    def serve(self, source: Source, name: str) -> Iterable[bytes | memoryview] | None:
        """A file as CRIU is given it; None where there is none."""
        if name in self.files:
            return [self.files[name]]
        if source.size(name) is None:
            return None
        pieces = self.pieces.get(name, ())
        return source.stream(name, [Range(one.offset, one.length) for one in pieces])


def make_plan(source: Source, *, advise: bool = False) -> Plan:
    """Decide what does not go through CRIU.

    Args:
        source: of its images.
        advise: whether areas that were nearly full are to be filled in huge pages.

    Raises:
        RestoreFailed: the images do not fit together (``checkpoint_damaged``).
        Exception: what the source raises.
    """

    def read(name: str) -> bytes | None:
        return None if source.size(name) is None else b"".join(source.stream(name))

    files: dict[str, bytes] = {}
    pieces: dict[str, tuple[Piece, ...]] = {}
    seen: set[str] = set()
    processes = read_processes(read)
    free = free_spans(processes, read)
    for process in processes:
        name = f"pagemap-{process.pid}.img"
        image = read(name)
        if image is None:
            continue
        number, areas = images.read_pagemap(image)
        pages = f"pages-{number}.img"
        if pages in seen:
            raise damaged(f"two processes claim {pages}")
        seen.add(pages)
        _check(areas, source.size(pages) or 0, process.pid)
        if any(area.flags & ~_KNOWN_FLAGS for area in areas):
            continue  # of a CRIU that knows more than we do
        chosen = tuple(_pieces(areas, free[process.pid], process.pid))
        if chosen:
            pieces[pages] = chosen
            files[name] = images.write_pagemap(number, _without(areas, chosen))
            memory = f"mm-{process.pid}.img"
            if advise:
                files[memory] = _advised(read(memory) or b"", chosen)
    return Plan(files, pieces)


def _span(area: Area) -> Span:
    return Span(area.address, area.address + area.pages * PAGE)


def _check(areas: Iterable[Area], size: int, pid: int) -> None:
    """Pages in ascending order, and as many bytes of them as there must be."""
    last = total = 0
    for area in areas:
        start, end = _span(area)
        if not last <= start < end <= TOP or start % PAGE:
            raise damaged(f"process {pid} has pages at {start:#x} out of place")
        last = end
        total += end - start if area.flags & images.PRESENT else 0
    if total != size:
        raise damaged(f"process {pid} has {size} bytes of pages, not {total}")


def _pieces(areas: Iterable[Area], free: Sequence[Span], pid: int) -> Iterator[Piece]:
    """Every run of pages, as far as it is free, that is worth it."""
    for offset, run in _runs(areas):
        for start, end in overlap(run, free):
            if end - start >= SMALLEST:
                yield Piece(offset + start - run.start, end - start, pid, start)


def _runs(areas: Iterable[Area]) -> Iterator[tuple[int, Span]]:
    """Pages without a gap, and their offset in the file.

    CRIU's entries have a few hundred pages each at most.
    """
    offset = start = end = 0
    for area in areas:
        if not area.flags & images.PRESENT:
            continue
        if area.address != end:
            if end > start:
                yield offset, Span(start, end)
            offset, start = offset + end - start, area.address
        end = _span(area).end
    if end > start:
        yield offset, Span(start, end)


def _advised(image: bytes, pieces: Sequence[Piece]) -> bytes:
    """The image of a process' areas, with advice for huge pages where it counts."""
    spans = [Span(one.address, one.address + one.length) for one in pieces]
    mm = images.parse("mm_entry", images.only(image, images.MM_MAGIC))
    for vma in mm.vmas:
        size = vma.end - vma.start
        if size < HUGE_PAGE or vma.status & GUARD or vma.madv & _NOHUGEPAGE:
            continue
        filled = sum(
            end - start for start, end in overlap(Span(vma.start, vma.end), spans)
        )
        if (size - filled) * _NEARLY_FULL <= size:
            vma.madv |= _HUGEPAGE
    return images.join(images.MM_MAGIC, [images.serialize(mm)])


def _without(areas: Iterable[Area], pieces: Iterable[Piece]) -> Iterator[Area]:
    """The areas less the pieces."""
    holes = [Span(one.address, one.address + one.length) for one in pieces]
    for area in areas:
        for start, end in subtract(_span(area), holes):
            yield Area(start, (end - start) // PAGE, area.flags)

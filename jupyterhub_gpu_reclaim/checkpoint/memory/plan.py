"""Plans which memory bypasses CRIU in a restore, and rewrites CRIU's images for it.

CRIU fills a process' memory in one thread, one page fault after the other. Large areas
are therefore taken out of its images, mapped empty by it, and filled by many workers
while the process is stopped (``fill``). Nothing here touches a process or a file: it
reads images that have been authenticated, and bounds everything.

Filling memory in huge pages is several times cheaper, and on most machines a process
has to ask for them. Areas that were nearly full are therefore advised (madvise(2)) as
if the process had asked: this cannot make it use more memory than it did.
"""

from __future__ import annotations

import bisect
import mmap
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.images import Area
from jupyterhub_gpu_reclaim.checkpoint.saved_images import Piece, Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages

PAGE: Final = mmap.PAGESIZE
#: No process has memory above.
TOP: Final = 1 << 64

# CRIU's image.h: bits of a vma_entry's status.
REGULAR, HEAP, ANON_PRIVATE, GUARD = 1 << 0, 1 << 5, 1 << 9, 1 << 16
# mmap(2): bits of its prot and flags.
_PROT_WRITE, _GROWSDOWN, _HUGETLB = 0x2, 0x100, 0x40000


class Span(NamedTuple):
    start: int
    end: int


def _free_spans(saved: SavedImages) -> dict[int, list[Span]]:
    """Per process that has memory, where others may write: as long as they can be."""
    spaces: dict[int, Any] = {}  #: of processes, but for zombies
    for task in saved.tasks():
        if task.pid in spaces:
            raise images.damaged(f"process {task.pid} stands twice in the tree")
        if (mm := saved.memory(task.pid)) is not None:
            _check_areas(_areas(mm), task.pid)
            spaces[task.pid] = mm
    inherited = _inherited(saved, spaces)
    found = {}
    for task in saved.tasks():
        if task.pid in spaces:
            plain = (_of(vma) for vma in _areas(spaces[task.pid]) if _is_plain(vma))
            spans = (span for span in plain if span not in inherited[task.pid])
            kept = _kept_by_kernel(task, saved)
            found[task.pid] = [
                part for span in _joined(spans) for part in subtract(span, kept)
            ]
    return found


def _areas(mm: Any) -> list[Any]:
    return [vma for vma in mm.vmas if not vma.status & GUARD]


def _of(vma: Any) -> Span:
    return Span(vma.start, vma.end)


def subtract(span: Span, holes: Sequence[Span]) -> Iterator[Span]:
    """Yield the parts of a span that are outside of the holes."""
    start, end = span
    for hole in holes[_first_beyond(holes, start) :]:
        if hole.start >= end:
            break
        if hole.start > start:
            yield Span(start, hole.start)
        start = max(start, hole.end)
    if start < end:
        yield Span(start, end)


def overlap(span: Span, others: Sequence[Span]) -> Iterator[Span]:
    """Yield the parts of a span within others, which ascend and do not overlap."""
    for at in range(_first_beyond(others, span.start), len(others)):
        if others[at].start >= span.end:
            break
        yield Span(max(span.start, others[at].start), min(span.end, others[at].end))


def _first_beyond(spans: Sequence[Span], address: int) -> int:
    return bisect.bisect_right(spans, address, key=lambda span: span.end)


def _check_areas(vmas: Iterable[Any], pid: int) -> None:
    last = 0
    for vma in vmas:
        if not last <= vma.start < vma.end or vma.start % PAGE or vma.end % PAGE:
            raise images.damaged(
                f"process {pid} has an area at {vma.start:#x} out of place"
            )
        last = vma.end


def _is_private(vma: Any) -> bool:
    return bool(vma.status & ~HEAP == REGULAR | ANON_PRIVATE)


# Areas that need CRIU are excluded: stacks, files, shared memory, huge-page mappings,
# what cannot be written by its own protection (newer kernels may forbid forcing it),
# what a process has inherited from its parent (CRIU finds the pages that both still
# share; written separately they would be there twice), and the few bytes that the
# kernel itself keeps up to date (restartable sequences).
def _is_plain(vma: Any) -> bool:
    return (
        _is_private(vma)
        and vma.prot & _PROT_WRITE
        and not vma.flags & (_GROWSDOWN | _HUGETLB)
    )


def _inherited(saved: SavedImages, spaces: Mapping[int, Any]) -> dict[int, set[Span]]:
    """Per process, the areas that it has in common with its parent or a child.

    The rule is CRIU's (``prepare_cow_vmas``): same place, same program.
    """
    found: dict[int, set[Span]] = defaultdict(set)
    for task in saved.tasks():
        mm, parents = spaces.get(task.pid), spaces.get(task.ppid)
        if mm is None or parents is None:
            continue
        if parents.exe_file_id == mm.exe_file_id:
            common = {*map(_of, _areas(mm))} & {*map(_of, _areas(parents))}
            found[task.pid] |= common
            found[task.ppid] |= common
    return found


def _kept_by_kernel(task: Any, saved: SavedImages) -> list[Span]:
    """Pages with the fields of rseq(2), one of each thread.

    The kernel writes there on which processor a thread runs, and may not do so again
    after us: the thread would go on with what was true where it was saved.
    """
    found = []
    for thread in {task.pid, *task.threads}:
        core = saved.core(thread)
        if core is None:
            raise images.damaged(f"thread {thread} has no state")
        rseq = core.thread_core.rseq_entry
        if rseq.rseq_abi_pointer:
            end = rseq.rseq_abi_pointer + max(1, rseq.rseq_abi_size)
            first = rseq.rseq_abi_pointer // PAGE
            found.append(Span(first * PAGE, -(-end // PAGE) * PAGE))
    return _joined(sorted(found))


def _joined(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for span in spans:
        if found and span.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


#: Below this a piece is not worth its price; bytes. Of a Python session with pandas and
#: scikit-learn (173 MB) 48 % lie in runs of 1 MiB and more, 94 % in runs of 256 KiB,
#: 95 % (107 pieces) in runs of this size, 96 % (310) in runs of one page.
SMALLEST: Final = 64 << 10

#: An area of more bytes is divided for CRIU.
_LARGEST: Final = 1 << 40
#: Size of a huge page, which the kernel fills at once; smaller areas hold none.
HUGE_PAGE: Final = 2 << 20
#: An area is advised when at most one page in so many was not in use.
_NEARLY_FULL: Final = 20
# madvise(2), as bits of a vma_entry's madv.
_HUGEPAGE, _NOHUGEPAGE = 1 << 14, 1 << 15
_KNOWN_FLAGS: Final = images.LAZY | images.PRESENT


@dataclass(frozen=True)
class MemoryPlan:
    """Memory that bypasses CRIU."""

    #: Pages image → what is copied by others, in ascending order, all of one process,
    #: whose ``pid`` is one of the session's namespace.
    pieces: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(one.length for pieces in self.pieces.values() for one in pieces)

    def serve(
        self, saved: SavedImages, name: str
    ) -> Iterable[bytes | memoryview] | None:
        """An image as CRIU is given it; None where there is none."""
        if saved.size(name) is None:
            return None
        pieces = self.pieces.get(name, ())
        return saved.stream(name, [Range(one.offset, one.length) for one in pieces])


def make_plan(saved: SavedImages, *, advise: bool = False) -> MemoryPlan:
    """Decide what does not go through CRIU, and take it out of the images.

    Raises:
        RestoreFailed: the images do not fit together (``checkpoint_damaged``).
        Exception: what their source raises.
    """
    pieces: dict[str, tuple[Piece, ...]] = {}
    seen: set[str] = set()
    for pid, free in _free_spans(saved).items():
        name, mm = f"pagemap-{pid}.img", saved.memory(pid)
        image = saved.read(name)
        if image is None:
            continue
        number, areas = images.read_pagemap(image)
        if any(vma.end - vma.start > _LARGEST for vma in _areas(mm)):
            _divide(mm)
        pages = f"pages-{number}.img"
        if pages in seen:
            raise images.damaged(f"two processes claim {pages}")
        seen.add(pages)
        _check_pages(areas, saved.size(pages) or 0, pid)
        if any(area.flags & ~_KNOWN_FLAGS for area in areas):
            continue  # of a CRIU that knows more than we do
        chosen = tuple(_pieces(areas, free, pid))
        if chosen:
            pieces[pages] = chosen
            saved.replace(name, images.write_pagemap(number, _without(areas, chosen)))
            if advise:
                _advise(mm, chosen)
    return MemoryPlan(pieces)


def present(areas: Iterable[Area]) -> list[tuple[int, int]]:
    """Address and bytes of what stands in an image of pages."""
    return [(a.address, a.pages * PAGE) for a in areas if a.flags & images.PRESENT]


def _span(area: Area) -> Span:
    return Span(area.address, area.address + area.pages * PAGE)


def _check_pages(areas: Iterable[Area], size: int, pid: int) -> None:
    last = total = 0
    for area in areas:
        start, end = _span(area)
        if not last <= start < end <= TOP or start % PAGE:
            raise images.damaged(f"process {pid} has pages at {start:#x} out of place")
        last = end
        total += end - start if area.flags & images.PRESENT else 0
    if total != size:
        raise images.damaged(f"process {pid} has {size} bytes of pages, not {total}")


def _pieces(areas: Iterable[Area], free: Sequence[Span], pid: int) -> Iterator[Piece]:
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


def _advise(mm: Any, pieces: Sequence[Piece]) -> None:
    spans = [Span(one.address, one.address + one.length) for one in pieces]
    for vma in mm.vmas:
        size = vma.end - vma.start
        if size < HUGE_PAGE or vma.status & GUARD or vma.madv & _NOHUGEPAGE:
            continue
        filled = sum(
            end - start for start, end in overlap(Span(vma.start, vma.end), spans)
        )
        if (size - filled) * _NEARLY_FULL <= size:
            vma.madv |= _HUGEPAGE


def _divide(mm: Any) -> None:
    whole = list(mm.vmas)
    del mm.vmas[:]
    for vma in whole:
        end = vma.end
        while _is_private(vma) and end - vma.start > _LARGEST:
            vma.end = vma.start + _LARGEST
            mm.vmas.append(vma)
            vma.start = vma.end
        vma.end = end
        mm.vmas.append(vma)


def _without(areas: Iterable[Area], pieces: Iterable[Piece]) -> Iterator[Area]:
    holes = [Span(one.address, one.address + one.length) for one in pieces]
    for area in areas:
        for start, end in subtract(_span(area), holes):
            yield Area(start, (end - start) // PAGE, area.flags)

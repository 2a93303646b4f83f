"""Finds in CRIU's images the memory areas that can be filled without CRIU.

It reads the tree (pstree), the areas (mm) and the threads (core) of images that have
been authenticated, and bounds everything. No file is opened.

Areas that need CRIU are excluded: stacks, files, shared memory, huge-page mappings,
what cannot be written by its own protection (newer kernels may forbid forcing it), what
a process has inherited from its parent (CRIU finds the pages that both still share;
written separately they would be there twice), and the few bytes that the kernel itself
keeps up to date (restartable sequences).
"""

from __future__ import annotations

import bisect
import mmap
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

PAGE: Final = mmap.PAGESIZE
#: No process has memory above.
TOP: Final = 1 << 64

# CRIU's image.h: bits of a vma_entry's status.
REGULAR, HEAP, ANON_PRIVATE, GUARD = 1 << 0, 1 << 5, 1 << 9, 1 << 16
# mmap(2): bits of its prot and flags.
_PROT_WRITE, _GROWSDOWN, _HUGETLB = 0x2, 0x100, 0x40000


class Span(NamedTuple):
    """From one address up to, not including, another."""

    start: int
    end: int


@dataclass(frozen=True)
class Process:
    """One process of the saved tree.

    Attributes:
        pid: in the session's namespace; likewise ``parent`` and ``threads``.
        exe: CRIU's number of the program that it runs.
        spans: all its areas, ascending.
        plain: those of them that are plain, writable memory of its own.
    """

    pid: int
    parent: int
    threads: tuple[int, ...]
    exe: int
    spans: tuple[Span, ...]
    plain: tuple[Span, ...]


def read_processes(read: Callable[[str], bytes | None]) -> list[Process]:
    """The processes that have memory.

    Args:
        read: an image by its name; None where there is none.

    Raises:
        RestoreFailed: the images are off (``checkpoint_damaged``).
    """
    found: dict[int, Process] = {}
    seen = set()
    tree = read("pstree.img")
    for payload in () if tree is None else images.split(tree, images.PSTREE_MAGIC):
        entry = images.parse("pstree_entry", payload)
        if entry.pid in seen:
            raise damaged(f"process {entry.pid} stands twice in the tree")
        seen.add(entry.pid)
        image = read(f"mm-{entry.pid}.img")
        if image is None:
            continue  # a zombie
        mm = images.parse("mm_entry", images.only(image, images.MM_MAGIC))
        vmas = [vma for vma in mm.vmas if not vma.status & GUARD]
        _check(vmas, entry.pid)
        found[entry.pid] = Process(
            pid=entry.pid,
            parent=entry.ppid,
            threads=tuple(sorted({entry.pid, *entry.threads})),
            exe=mm.exe_file_id,
            spans=tuple(Span(vma.start, vma.end) for vma in vmas),
            plain=tuple(Span(vma.start, vma.end) for vma in vmas if _is_plain(vma)),
        )
    return list(found.values())


def free_spans(
    processes: Sequence[Process], read: Callable[[str], bytes | None]
) -> dict[int, list[Span]]:
    """Per process, where others may write: ascending, as long as they can be.

    Raises:
        RestoreFailed: an image of a thread is off (``checkpoint_damaged``).
    """
    inherited = _inherited(processes)
    found = {}
    for process in processes:
        spans = (span for span in process.plain if span not in inherited[process.pid])
        kept = _kept_by_kernel(process, read)
        found[process.pid] = [
            part for span in _joined(spans) for part in subtract(span, kept)
        ]
    return found


def subtract(span: Span, holes: Sequence[Span]) -> Iterator[Span]:
    """What is left of a span.

    Args:
        span: of which.
        holes: ascending, not overlapping.
    """
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
    """What a span has in common with others, which ascend and do not overlap."""
    for at in range(_first_beyond(others, span.start), len(others)):
        if others[at].start >= span.end:
            break
        yield Span(max(span.start, others[at].start), min(span.end, others[at].end))


def damaged(why: str) -> RestoreFailed:
    """The error for images that do not fit together."""
    return RestoreFailed(Reason.CHECKPOINT_DAMAGED, why=why)


def _first_beyond(spans: Sequence[Span], address: int) -> int:
    """The number of the first that ends after that address."""
    return bisect.bisect_right(spans, address, key=lambda span: span.end)


def _check(vmas: Iterable[Any], pid: int) -> None:
    last = 0
    for vma in vmas:
        if not last <= vma.start < vma.end or vma.start % PAGE or vma.end % PAGE:
            raise damaged(f"process {pid} has an area at {vma.start:#x} out of place")
        last = vma.end


def _is_plain(vma: Any) -> bool:
    kind = vma.status & ~HEAP == REGULAR | ANON_PRIVATE
    return kind and vma.prot & _PROT_WRITE and not vma.flags & (_GROWSDOWN | _HUGETLB)


def _inherited(processes: Sequence[Process]) -> dict[int, set[Span]]:
    """Per process, the areas that it has in common with its parent or a child.

    The rule is CRIU's (``prepare_cow_vmas``): same place, same program.
    """
    by_pid = {process.pid: process for process in processes}
    found: dict[int, set[Span]] = defaultdict(set)
    for process in processes:
        parent = by_pid.get(process.parent)
        if parent is not None and parent.exe == process.exe:
            common = {*process.spans} & {*parent.spans}
            found[process.pid] |= common
            found[parent.pid] |= common
    return found


def _kept_by_kernel(
    process: Process, read: Callable[[str], bytes | None]
) -> list[Span]:
    """Pages with the fields of rseq(2), one of each thread.

    The kernel writes there on which processor a thread runs, and may not do so again
    after us: the thread would go on with what was true where it was saved.
    """
    found = []
    for thread in process.threads:
        image = read(f"core-{thread}.img")
        if image is None:
            raise damaged(f"thread {thread} has no state")
        core = images.parse("core_entry", images.only(image, images.CORE_MAGIC))
        rseq = core.thread_core.rseq_entry
        if rseq.rseq_abi_pointer:
            end = rseq.rseq_abi_pointer + max(1, rseq.rseq_abi_size)
            first = rseq.rseq_abi_pointer // PAGE
            found.append(Span(first * PAGE, -(-end // PAGE) * PAGE))
    return _joined(sorted(found))


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Ascending spans, those made one that touch or overlap."""
    found: list[Span] = []
    for span in spans:
        if found and span.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found

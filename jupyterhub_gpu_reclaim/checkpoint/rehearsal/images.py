"""Images for a rehearsal, which is given them without the memory.

A rehearsal needs what CRIU writes about processes, files and sockets, and none of the
pages: nothing of it is ever continued. So a dump keeps everything but pages and the
contents of deleted files (``DumpResult.images``), and :func:`without_memory` gives CRIU
address spaces that are empty but for the few pages that CRIU itself reads
while it restores (the vDSO, rings of kernel AIO). Those come from the tree that stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.stream import GHOST, PAGES
from jupyterhub_gpu_reclaim.checkpoint.kinds import locks
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import PAGE, Span, overlap
from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Mapping

_PAGEMAP: Final = "pagemap-"
_MEMORY: Final = "mm-"
#: Of an image without entries: two magic numbers.
_HEAD_BYTES: Final = 8

# CRIU's image.h: areas whose contents it reads while it restores: the vDSO, the
# variables beside it, a ring of kernel AIO, a shadow stack.
_READ_BY_CRIU: Final = 1 << 3 | 1 << 12 | 1 << 13 | 1 << 15
#: mmap(2): memory that is locked is filled at once.
_MAP_LOCKED: Final = 0x2000


def without_memory(
    files: Mapping[str, bytes | bytearray], memory: Mapping[str, bytes]
) -> SavedImages:
    """The kept images, without memory and without locks on files.

    Locks are held by the tree itself, which stands beside.
    """
    found = {name: bytes(data) for name, data in files.items()} | {**memory}
    for name, data in found.items():
        if name == locks.IMAGE:
            found[name] = data[:_HEAD_BYTES]
        elif name.startswith(GHOST):
            found[name] = _hollow(data)
    return SavedImages(None, found)


def without_pages(
    files: Mapping[str, bytes | bytearray], pids: Mapping[int, int]
) -> dict[str, bytes]:
    """The images of address spaces, without all pages that CRIU does not read.

    Returns:
        name → contents of those that differ.

    Raises:
        OSError: a page cannot be read.
    """
    spaces = {n: bytes(files[n]) for n in files if n.startswith((_PAGEMAP, _MEMORY))}
    saved = SavedImages(None, spaces)
    for name in files:
        if name.startswith(_PAGEMAP):
            _empty(saved, name, pids)
    return {n: data for n, data in saved.written().items() if data != spaces.get(n)}


def _empty(saved: SavedImages, name: str, pids: Mapping[int, int]) -> None:
    number, areas = images.read_pagemap(saved.read(name) or b"")
    process = name.removeprefix(_PAGEMAP).removesuffix(".img")
    memory = saved.memory(int(process)) if process.isdecimal() else None
    kept = []
    for vma in () if memory is None else memory.vmas:
        vma.flags &= ~_MAP_LOCKED
        if vma.status & _READ_BY_CRIU:
            kept.append(Span(vma.start, vma.end))
    left = [
        images.Area(part.start, (part.end - part.start) // PAGE, area.flags)
        for area in areas
        if area.flags & images.PRESENT
        for part in overlap(Span(area.address, area.address + area.pages * PAGE), kept)
    ]
    saved.replace(name, images.write_pagemap(number, left))
    pages = b"".join(
        procfs.memory(pids[int(process)], area.address, size).ljust(size, b"\0")
        for area in left
        for size in [area.pages * PAGE]
    )
    saved.replace(f"{PAGES}{number}.img", pages)


def _hollow(ghost: bytes) -> bytes:
    payload = next(images.split(ghost, images.GHOST_MAGIC))
    entry = images.parse("ghost_file_entry", payload)
    entry.chunks = True
    entry.size = entry.size  # a small one has no length of its own
    return images.join(images.GHOST_MAGIC, [images.serialize(entry)])

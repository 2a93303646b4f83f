"""The commit: one index out of all reports, then the index, then the manifest.

``FORMAT.md``, 3 to 6. Merging is pure. The last steps run when all packs have settled:
everything that is published is read back, and everything it needs is checked again
afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format import layout, manifest
from jupyterhub_gpu_reclaim.store.format.index import (
    BLOCKS,
    ChunkIndex,
    chunks_of,
    damaged,
    encode_index,
    read_index,
)
from jupyterhub_gpu_reclaim.store.format.manifest import PackRef
from jupyterhub_gpu_reclaim.store.packing.base_blocks import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Backend, Entry
    from jupyterhub_gpu_reclaim.store.format.crypto import Origin
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper
    from jupyterhub_gpu_reclaim.store.format.manifest import Body
    from jupyterhub_gpu_reclaim.store.packing.pack_writer import Report

#: Of a chunk that no pack writer has taken.
_MISSING = np.iinfo(np.int64).min


@dataclass(frozen=True)
class BaseCheckpoint:
    body: Body
    index: ChunkIndex


@dataclass(frozen=True)
class Merged:
    index: ChunkIndex
    packs: list[PackRef]
    origins: list[Origin]  #: of the base, that are needed still


class FileEntry(NamedTuple):
    name: str  #: empty: a part, which others are put together from
    length: int
    #: What it is put together from: number of a part, its first chunk, and how many.
    pieces: Sequence[tuple[int, int, int]] = ()


def merge(
    files: list[FileEntry],
    chunk_bytes: int,
    reports: Sequence[Report],
    base: BaseCheckpoint | None,
    verdicts: NDArray[np.uint8],
) -> Merged:
    """Merge all into one index; ``files`` are by the writers' numbers.

    Raises:
        StoreError: some chunk of a file is missing; ``CHECKPOINT_DAMAGED``: its block
            is damaged, or was not opened.
    """
    codes, fresh_ids = _gather(files, chunk_bytes, reports)
    packs = [PackRef(0, *pack) for report in reports for pack in report.packs]
    places = {pack.number: place for place, pack in enumerate(packs)}
    tables = []
    for report in reports:
        table = report.blocks.copy()
        if len(table):
            numbers, back = np.unique(table["pack"], return_inverse=True)
            table["pack"] = np.array([places[int(n)] for n in numbers])[back]
        tables.append(table)
    total = sum(int(table["chunks"].sum(dtype=np.int64)) for table in tables)
    ids = [fresh_ids]
    origins: list[Origin] = []
    known = codes < 0
    if base is not None and known.any():
        # By marks in an array: sorting or hashing millions of refs takes seconds, in
        # which the session stands still.
        wanted = -codes[known]
        used = np.zeros(int(base.index.bases[-1]) + 1, np.bool_)
        used[wanted] = True
        kept = np.add.reduceat(used[1:], base.index.bases[:-1], dtype=np.int64) > 0
        _check_kept(base, kept, verdicts)
        table, moved, more, origins = _of_base(base, kept, len(packs))
        codes[known] = total + moved[wanted]
        tables.append(table)
        packs += more
        ids.append(base.index.ids[used[base.index.live()]])
    blocks = np.concatenate(tables) if tables else np.empty(0, BLOCKS)
    named = [(name, length) for name, length, _ in files if name]
    index = ChunkIndex(named, blocks, codes.astype(np.uint32), np.concatenate(ids))
    return Merged(index, packs, origins)


def _gather(
    files: list[FileEntry], chunk_bytes: int, reports: Sequence[Report]
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    counts = [chunks_of(file.length, chunk_bytes) for file in files]
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    codes = np.full(int(starts[-1]), _MISSING, np.int64)
    before = 0
    for report in reports:
        refs = np.where(report.refs > 0, report.refs + before, report.refs)
        before += len(report.ids)
        at = 0
        for file, first, count in report.rows.tolist():
            start = int(starts[file]) + first
            codes[start : start + count] = refs[at : at + count]
            at += count
    for number, file in enumerate(files):
        start = int(starts[number])
        for part, first, count in file.pieces:
            begin = int(starts[part]) + first
            codes[start : start + count] = codes[begin : begin + count]
            start += count
    empty = np.empty((0, 2), np.uint64)
    ids = np.concatenate([*(report.ids for report in reports), empty])
    if not all(file.name for file in files):
        ranges = [starts[n : n + 2] for n, file in enumerate(files) if file.name]
        codes = np.concatenate([codes[begin:end] for begin, end in ranges])
        used = np.zeros(len(ids) + 1, np.bool_)
        used[codes[codes > 0]] = True
        ids = ids if used[1:].all() else ids[used[1:]]
    if (codes == _MISSING).any():
        raise StoreError(Reason.STORE_FAILED, why="a part of a file was not taken")
    return codes, ids


def _check_kept(
    base: BaseCheckpoint, kept: NDArray[np.bool_], verdicts: NDArray[np.uint8]
) -> None:
    """Nothing may be referenced that was not opened in this capture."""
    bad = np.flatnonzero(kept & (verdicts != Verdict.WHOLE))
    if len(bad):
        row = base.index.blocks[bad[0]]
        name = base.body.pack_name(base.body.packs[int(row["pack"])])
        raise damaged(f"block {row['number']} of {name} is not what was written")


def _of_base(
    base: BaseCheckpoint, kept: NDArray[np.bool_], packs_before: int
) -> tuple[NDArray[np.void], NDArray[np.int64], list[PackRef], list[Origin]]:
    # The blocks that are still needed: their table; for each ref that is used its new
    # place among their chunks, from 1; their packs, with new numbers of origins; which
    # old origins these are.
    index = base.index
    chunks = index.blocks["chunks"].astype(np.int64)
    block_of = np.repeat(np.arange(len(chunks)), chunks)
    # What stands before a block that is kept, and is not, is missing in the new table.
    missing = np.cumsum(np.where(kept, 0, chunks))
    moved = np.arange(1 + len(block_of))
    moved[1:] -= missing[block_of]
    table = index.blocks[kept]
    places, table["pack"] = np.unique(table["pack"], return_inverse=True)
    table["pack"] += np.uint32(packs_before)
    old = [base.body.packs[int(place)] for place in places]
    origins = sorted({pack.origin for pack in old})
    packs = [
        PackRef(1 + origins.index(pack.origin), pack.number, pack.length)
        for pack in old
    ]
    return table, moved, packs, [base.body.origins[place] for place in origins]


def write_index(backend: Backend, origin: Origin, index: ChunkIndex) -> int:
    """Write it, durably; its length. It has to read back."""
    sealed, name = encode_index(index, origin.index_key()), layout.index(origin.id)
    writer = backend.create(name)
    try:
        writer.write(sealed)
        writer.finish()
    finally:
        writer.abandon()
    if read_index(backend, name, len(sealed)) != sealed:
        raise StoreError(Reason.STORE_FAILED, why=f"{name} reads back differently")
    return len(sealed)


def publish_manifest(
    backend: Backend, body: Body, keys: Wrapper, last_look: Callable[[], None]
) -> None:
    """Make a checkpoint exist, unless the last look, right before, raises."""
    # On a StoreError it may exist nevertheless, and has to be removed.
    id_ = body.info.id
    data = manifest.encode(body, keys)
    if manifest.decode(data, id_, keys) != body:
        # A key service that wraps what it does not give back loses everything.
        raise StoreError(Reason.STORE_FAILED, why="its key does not open it")
    objects = body.objects()
    _see_there(backend, objects)
    last_look()
    name = layout.manifest(id_)
    backend.publish(name, data)
    if backend.read(name, 0, len(data) + 1) != data:
        raise StoreError(Reason.STORE_FAILED, why=f"{name} reads back differently")
    _see_there(backend, objects)


def _see_there(backend: Backend, objects: list[Entry]) -> None:
    for name, length in objects:
        if backend.length(name) != length:
            raise StoreError(Reason.STORE_FAILED, why=f"{name} has changed")

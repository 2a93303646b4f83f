"""Brings a saved session back in an empty place, compares it, and throws it away.

What a drill shows: every byte of the checkpoint is read and authenticated, its images
fit together and to the files of this machine, CRIU makes the same processes of them,
and their memory is filled with what was saved. What it does not show: that the programs
go on. They are never continued, since a second copy of a session that ran would write
into the same files. Nothing is moved back to a GPU.

What it leaves alone: the session's record and lease, the checkpoint, held ports,
and the user's files. The place has namespaces of its own, one for the network among
them, in which there is only a loopback: ports are free there, and the Hub is not to be
reached. Files are opened as for a return, with their user's rights, and nothing is
written. Locks on files are left out, so that a real return meanwhile gets them. What a
return makes in the user's folders (names of sockets, named pipes, deleted files) is
made in a folder of the drill's own.

If the caller dies, the kernel ends the place with it.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
from jupyterhub_gpu_reclaim.checkpoint.files import locks
from jupyterhub_gpu_reclaim.checkpoint.files.handover import ReplacedImages
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import PAGE, Span, overlap
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.images import without_entries
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.place import (
    empty_place,
    scratch_folder,
)
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.tree import restore as engine
from jupyterhub_gpu_reclaim.common.errors import Refused, RestoreFailed
from jupyterhub_gpu_reclaim.common.findings import refuse_fatal
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import sock_diag
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import (
    FILES,
    CheckpointContents,
)
from jupyterhub_gpu_reclaim.node.operations.checkpoint_images import CheckpointImages
from jupyterhub_gpu_reclaim.node.operations.host_memory import HostMemory, Need
from jupyterhub_gpu_reclaim.node.sessions.placements import Session
from jupyterhub_gpu_reclaim.node.workflows import filesystem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.criu.binary import Criu
    from jupyterhub_gpu_reclaim.store.repository import Repository

_SHM, _TMP = "/dev/shm", "/tmp"  # noqa: S108 - the session's own


@dataclass(frozen=True)
class Drill:
    """How a drill has ended.

    Attributes:
        checkpoint: that was tried.
        seconds: that it took.
        bytes: of memory that came back, or that were only read.
        same: of these, how many were read back from the processes and are the same. The
            rest are a few pages of each process, which the kernel itself writes to.
        processes: that came back.
        unproven: why it was only read; empty: it came back.
    """

    checkpoint: str
    seconds: float
    bytes: int
    same: int = 0
    processes: int = 0
    unproven: str = ""


@dataclass
class ReadBack:
    """Bytes of memory that were read back, and how many are what was saved."""

    bytes: int = 0
    same: int = 0


def run(
    criu: Criu, repository: Repository, checkpoint: str, *, limit: float = 3600.0
) -> Drill:
    """Try a checkpoint; blocks, as root.

    Args:
        criu: which CRIU.
        repository: of the store.
        checkpoint: its id.
        limit: seconds that each step may take.

    Raises:
        NotFound: there is no such checkpoint.
        StoreError: it is damaged, or the store does not work.
        Refused: ``not_enough_memory``.
        ReclaimError: no place could be made (``launch_failed``).
        RestoreFailed: it does not come back here, and a return would fail, too; the
            reason says why.
    """
    begun = time.monotonic()
    there = CheckpointContents(repository.open(checkpoint))
    unproven = _unproven(there)
    if unproven:
        read = _read(there)
        return Drill(checkpoint, time.monotonic() - begun, read, unproven=unproven)
    _refuse_without_memory(there)
    empty = [_SHM, *([_TMP] if _TMP in there.world.archives else [])]
    with (
        empty_place(empty=empty) as init,
        scratch_folder() as scratch,
        tempfile.TemporaryDirectory() as folder,
    ):
        session = Session(
            uuid.uuid4().hex,
            there.checkpoint.info.key,
            init.init_pid,
            init.init_start,
            holding=True,
        )
        filesystem.restore_archives(session, there.checkpoint, there.world)
        source = CheckpointImages(there.checkpoint)
        made = _restore(
            criu,
            session,
            there,
            source,
            scratch=scratch,
            folder=Path(folder),
            limit=limit,
        )
        found = _compare(source, made)
    seconds = time.monotonic() - begun
    count = len(made.tree.processes)
    return Drill(checkpoint, seconds, found.bytes, found.same, count)


def _unproven(there: CheckpointContents) -> str:
    """Why that session can only be read; empty: it can be brought back."""
    if there.world.image:
        return "it lived in a container, whose file system is not here"
    return ""


def _read(there: CheckpointContents) -> int:
    """Read and authenticate all of it."""
    problems = there.checkpoint.verify()
    if problems:
        why = problems[0].why
        raise RestoreFailed(Reason.CHECKPOINT_DAMAGED, why=why)
    return there.checkpoint.verified_bytes


def _refuse_without_memory(there: CheckpointContents) -> None:
    """Leave as much memory free as the drill takes.

    Raises:
        Refused: there is less than twice what the session held.
    """
    need = Need(2 * there.world.memory, os.getpid())
    refuse_fatal(HostMemory().findings(need), Refused)


def _restore(
    criu: Criu,
    session: Session,
    there: CheckpointContents,
    source: CheckpointImages,
    *,
    scratch: int,
    folder: Path,
    limit: float,
) -> engine.RestoreResult:
    """The tree, whole and stopped; what was to be filled is still named in it."""
    world = there.world
    init = SessionInit(session.init_pid, session.init_start)
    image = b"".join(source.stream(FILES))
    here = sock_diag.own_addresses(session.init_pid)
    files = {FILES: inet.close_external(image, here, world.cut)}
    if source.size(locks.IMAGE) is not None:
        files[locks.IMAGE] = without_entries(b"".join(source.stream(locks.IMAGE)))
    replaced = ReplacedImages(source, files)
    made = engine.restore(
        criu,
        init,
        source=replaced,
        folder=folder,
        scratch=scratch,
        limit=limit,
        root_pid=world.root,
        pids=world.pids,
        pipes=world.pipes,
        opened=world.files,
        ended=inet.ended_connections(image, here, world.cut),
    )
    whole = engine.fill(init, made, source=replaced, limit=limit)
    return replace(whole, missing=made.missing)


def _compare(source: CheckpointImages, made: engine.RestoreResult) -> ReadBack:
    """Read all private memory back and compare it, page by page.

    Raises:
        RestoreFailed: memory that was filled past CRIU is not what was saved.
    """
    found = ReadBack()
    for process in made.tree.processes:
        pagemap = f"pagemap-{process.ns_pid}.img"
        if source.size(pagemap) is None:
            continue
        number, areas = images.read_pagemap(b"".join(source.stream(pagemap)))
        name = f"pages-{number}.img"
        filled = [
            Span(piece.address, piece.address + piece.length)
            for piece in made.missing.pieces.get(name, ())
        ]
        with Path(f"/proc/{process.pid}/mem").open("rb", buffering=0) as memory:
            for address, saved in _pages(source.stream(name), areas):
                now = os.pread(memory.fileno(), PAGE, address)
                found.bytes += PAGE
                found.same += PAGE if now == saved else 0
                here = Span(address, address + PAGE)
                if now != saved and any(overlap(here, filled)):
                    why = f"memory of process {process.ns_pid} is not what was saved"
                    raise RestoreFailed(Reason.RESTORE_FAILED, why=why)
    return found


def _pages(
    buffers: Iterable[bytes | memoryview], areas: Iterable[images.Area]
) -> Iterator[tuple[int, memoryview]]:
    """Address and contents of every page of a pages image."""
    addresses = (
        address
        for area in areas
        if area.flags & images.PRESENT
        for address in range(area.address, area.address + area.pages * PAGE, PAGE)
    )
    for buffer in buffers:
        view = memoryview(buffer)
        for at in range(0, len(view), PAGE):
            yield next(addresses), view[at : at + PAGE]

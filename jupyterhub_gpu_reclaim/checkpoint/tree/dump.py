"""Freezes a session's tree and streams its image out, but for its programs' memory.

That is read behind it (``standing``). The tree is left stopped and alive, until the
agent ends it or thaws it. The same holds for all other processes in its pid namespace.
Nothing here knows where the image goes.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.criu.process import (
    STOP_PATIENCE,
    CriuRun,
    SessionInit,
)
from jupyterhub_gpu_reclaim.checkpoint.criu.stream import GHOST, PAGES, CaptureServer
from jupyterhub_gpu_reclaim.checkpoint.kinds import locks, table
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump
from jupyterhub_gpu_reclaim.checkpoint.memory.ahead import ReadAhead
from jupyterhub_gpu_reclaim.checkpoint.saved_images import FILES, SavedImages
from jupyterhub_gpu_reclaim.checkpoint.tree import freeze
from jupyterhub_gpu_reclaim.checkpoint.tree.standing import PageSinks, StandingMemory
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, RolledBack
from jupyterhub_gpu_reclaim.common.findings import of_kind, refuse_fatal
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.criu.binary import Criu
    from jupyterhub_gpu_reclaim.checkpoint.criu.stream import PipeSink, Sink
    from jupyterhub_gpu_reclaim.checkpoint.memory.ahead import MemoryPart


#: Images that kinds may look at or change before they are saved.
_KEPT_BACK: Final = frozenset({FILES, locks.IMAGE})
_KEPT_BACK_OF_EACH: Final = ("core-", "mm-")
_GHOST_HEAD_BYTES: Final = 4096


@dataclass(frozen=True)
class DumpResult:
    """What is known of a tree that was dumped."""

    root_pid: int  #: of the tree's root, in the session's namespace
    #: Every process and thread id in use, in the session's namespace.
    pids: tuple[int, ...]
    stopped: tuple[int, ...]  #: pids of processes that a signal had stopped before
    #: Name → contents, of all that hold no memory; of deleted files, what they were.
    images: Mapping[str, bytes | bytearray] = field(default_factory=dict)
    #: What no sink got: the caller delivers it while the tree stands.
    memory: StandingMemory = field(default_factory=StandingMemory)


def dump(
    criu: Criu,
    session: SessionInit,
    *,
    sinks: Callable[[str], Sink],
    folder: Path,
    limit: float,
    stopped: Collection[int],
    prepare: Callable[[int], None] | None = None,
    cancel: Cancel | None = None,
    parts: Callable[[], AbstractContextManager[MemoryPart]] | None = None,
) -> DumpResult:
    """Dump the tree under that init; blocks, so call it in a thread.

    ``sinks`` is called from many threads, for each of CRIU's image files, but for those
    of the programs' memory (``DumpResult.memory``); ``folder`` is empty, ours, mode
    0700, for CRIU's socket and log. ``stopped`` are the processes that a signal had
    stopped before anything was done to the tree. ``prepare`` is called with the pid of
    the helper that becomes CRIU, e.g. to move it out of control groups that may be
    killed. ``parts`` begins a part of the checkpoint, where files can be composed of
    such; memory is read ahead then. It is for the caller to let the tree go on after a
    failure (``freeze.thaw``): something may have to be given back to it before.

    Raises:
        Refused: there is nothing to save.
        RolledBack: CRIU could not, time was up, or it was cancelled.
        Exception: what a sink has raised.
    """
    before = processes.snapshot(session.init_pid, session.init_start)
    if before.root is None or before.root.state in processes.DEAD:
        raise Refused(Reason.NO_TREE)
    arguments = ["--leave-stopped", "--tree", str(before.root.ns_pid)]
    kinds = table.every()
    try:
        tree, _ = freeze.freeze(
            session.init_pid, session.init_start, timeout=STOP_PATIENCE
        )
        with ExitStack() as stack:
            ahead = None
            if parts is not None:
                ahead = ReadAhead(tree.processes, parts)
                stack.callback(ahead.end)
            kept = _Kept(sinks, PageSinks(ahead))
            server = CaptureServer(folder, kept)
            attempt = CriuRun(criu, session, folder, server, limit, cancel)
            dumped = Dump(init_pid=session.init_pid, tree=tree, stack=stack)
            for kind in kinds:
                if kind.asked_again:
                    refuse_fatal(kind.preflight(dumped), RolledBack)
                kind.before_dump(dumped)
            attempt.run(
                "dump",
                [*arguments, *dumped.arguments],
                reason=Reason.CAPTURE_FAILED,
                own_ipc=dumped.own_ipc,
                prepare=prepare,
            )
            dumped.tree = tree = processes.wait_stopped(
                session.init_pid, session.init_start, timeout=STOP_PATIENCE
            )
            back = {n: bytes(kept.images[n]) for n in kept.images if _is_kept_back(n)}
            dumped.images = SavedImages(None, back)
            for kind in kinds:
                kind.save(dumped)
            written = dumped.images.written()
            for name, image in written.items():
                sink = sinks(name)
                sink.write(memoryview(image))
                sink.close()
        # What kinds had changed of the programs for the dump is as before only now.
        memory = StandingMemory.of(tree, kept.pages.dropped, kept.images, ahead)
    except (OSError, ReclaimError) as error:
        raise of_kind(error, RolledBack, Reason.CAPTURE_FAILED) from error
    return DumpResult(
        root_pid=before.root.ns_pid,
        pids=_ids(dumped),
        stopped=tuple(sorted(stopped)),
        images={**kept.images, **written},
        memory=memory,
    )


class _Kept:
    """Passes images on, but for those that kinds may change, and keeps a copy."""

    def __init__(self, sinks: Callable[[str], Sink], pages: PageSinks) -> None:
        self._sinks = sinks
        self.images: dict[str, bytearray] = {}
        self.pages = pages

    def __call__(self, name: str) -> Sink | PipeSink:
        dropped = self.pages(name)
        if name.startswith(PAGES):
            return dropped or self._sinks(name)
        copy = self.images.setdefault(name, bytearray())
        sink = None if _is_kept_back(name) else self._sinks(name)
        most = _GHOST_HEAD_BYTES if name.startswith(GHOST) else sys.maxsize
        return _KeptImage(copy, sink, most)


class _KeptImage:
    def __init__(self, copy: bytearray, sink: Sink | None, most: int) -> None:
        self._copy = copy
        self._sink = sink
        self._most = most

    def write(self, data: memoryview, /) -> None:
        self._copy += data[: max(0, self._most - len(self._copy))]
        if self._sink is not None:
            self._sink.write(data)

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()


def _is_kept_back(name: str) -> bool:
    return name in _KEPT_BACK or name.startswith(_KEPT_BACK_OF_EACH)


def _ids(dumped: Dump) -> tuple[int, ...]:
    found = {process.ns_pid for process in dumped.tree.processes}
    for one in dumped.programs:
        found |= {procfs.inner_id(status) for status in one.threads.values()}
    return tuple(sorted(found - {0}))

"""Tries the return of a tree that has been dumped and still stands.

The very images are restored in an empty place beside the tree, without memory, judged
as a return is judged, and thrown away. So what would never come back is found while it
can still go on. Files are opened as for a return, with their user's rights, but for
those that are written: of these it is asked whether they might be. What a return would
make among them is made in a scratch folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu.namespaces import open_scratch
from jupyterhub_gpu_reclaim.checkpoint.criu.process import passes
from jupyterhub_gpu_reclaim.checkpoint.files.reopen import Trial
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.images import (
    without_memory,
    without_pages,
)
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.place import empty_place
from jupyterhub_gpu_reclaim.checkpoint.tree import restore as engine
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed, RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, procfs
from jupyterhub_gpu_reclaim.linux.descriptors import closing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.criu.binary import Criu
    from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint
    from jupyterhub_gpu_reclaim.checkpoint.tree.dump import DumpResult
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot

#: Reasons that tell of this moment, not of the session.
_PASSING = frozenset(
    {
        Reason.TIMED_OUT,
        Reason.CANCELLED,
        Reason.LAUNCH_FAILED,
        Reason.FILES_SILENT,
        Reason.INTERNAL,
    }
)


class Dumped(NamedTuple):
    """Result of a dump, as far as a rehearsal needs it."""

    result: DumpResult
    opened: Sequence[FileFingerprint]
    cut: Collection[int]  #: inodes of the connections that were cut before
    #: ``without_pages`` of the images, where the tree goes on; None: it stands until
    #: the rehearsal has ended.
    memory: Mapping[str, bytes] | None = None


def rehearse(
    criu: Criu,
    session: SessionInit,
    dumped: Dumped,
    *,
    folder: Path,
    limit: float,
    prepare: Callable[[int], None] | None = None,
    cancel: Cancel | None = None,
) -> None:
    """Restore the tree beside itself, and throw the copy away; blocks.

    Raises:
        RolledBack: it would not come back (``would_not_return``), or that could not be
            found out (``timed_out``, ``cancelled``, …).
    """
    tree = processes.snapshot(session.init_pid, session.init_start)
    memory = dumped.memory
    if memory is None:
        memory = without_pages(dumped.result.images, pids_of(tree))
    try:
        with closing(open_scratch()) as scratch, empty_place(session) as place:
            engine.restore(
                criu,
                place,
                source=without_memory(dumped.result.images, memory),
                folder=folder,
                limit=limit,
                opened=dumped.opened,
                cut=dumped.cut,
                trial=Trial(scratch, goes_on=dumped.memory is not None),
                prepare=prepare,
                cancel=cancel,
            )
    except RestoreFailed as error:
        raise _refused(error, tree) from error


def pids_of(tree: Snapshot) -> dict[int, int]:
    return {one.ns_pid: one.pid for one in tree.processes}


def _refused(error: RestoreFailed, tree: Snapshot) -> RolledBack:
    if error.reason in _PASSING:
        return RolledBack(error.reason, detail=error.detail, **error.facts)
    why, path = error.message, str(error.facts.get("path", ""))
    if error.reason is Reason.RESTORE_FAILED:
        why = error.facts["why"]
        if passes(why):
            return RolledBack(Reason.CAPTURE_FAILED, why=why, detail=str(error))
        why = f"{why}."
    elif error.reason is Reason.FILE_SWAPPED:
        why = f"Something other than {path} would come back."
    holder = _holder(tree, path)
    return RolledBack(Reason.WOULD_NOT_RETURN, why=f"{why}{holder}", detail=str(error))


def _holder(tree: Snapshot, path: str) -> str:
    for process in tree.processes if path else ():
        links = procfs.links(process.pid)
        if path in (target.removesuffix(" (deleted)") for _, target in links):
            return f" Process {process.ns_pid} ({process.name}) has it."
    return ""

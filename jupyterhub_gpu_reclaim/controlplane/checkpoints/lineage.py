"""Orders a session's checkpoints, independently of the journal.

A journal may be too old: restored from a backup, rolled back with its machine, or lost.
Then the manifests in the store know better. The newest checkpoint is that of the
highest stamp (``CheckpointInfo.stamp``): the term of the service that ordered it, and
its number among those that this service has given out.

The parent of a session (``CheckpointInfo.parent``) orders nothing. It distinguishes
what a newer state has superseded from what a person has set aside.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE
from jupyterhub_gpu_reclaim.controlplane.model.rows import WHOEVER_COMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Tree
    from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow


def goes_back_to(checkpoint: str, observed: Observed) -> set[str]:
    """Ancestors of a checkpoint, as far as known, but those that a person set aside."""
    infos = {each.id: each for each in observed.saved or ()}
    found: set[str] = set()
    info = infos.get(checkpoint)
    while info is not None and info.parent not in found:
        found.add(info.parent)
        info = infos.get(info.parent)
    return {each for each in found if each not in infos or infos[each].aside is None}


def newest(infos: Iterable[CheckpointInfo]) -> CheckpointInfo | None:
    """Return the checkpoint of the highest stamp."""
    return max(infos, key=lambda info: (info.stamp, info.id), default=None)


def highest(row: SessionRow, infos: Iterable[CheckpointInfo]) -> dict[str, Any]:
    """Columns for the row's highest stamp, once these checkpoints are accounted for."""
    term, generation = max([row.stamp, *(info.stamp for info in infos)])
    return {"term": term, "generation": generation}


def is_anothers(row: SessionRow, info: CheckpointInfo) -> bool:
    """Whether a checkpoint is of another account than the row, if both tell."""
    same = info.session == row.session != ""
    mine = same or row.account in {"", WHOEVER_COMES, info.account}
    return info.account != "" and not mine


def missed(row: SessionRow, observed: Observed) -> CheckpointInfo | None:
    """The newest checkpoint that the journal missed; None: it knows one as new."""
    return newest(
        info
        for info in observed.unknown()
        if info.stamp > row.stamp and info.aside is None
    )


def falls_back_to(row: SessionRow, observed: Observed) -> CheckpointInfo | None:
    """Return what an ended session goes back to: its parent, or a save point of it.

    The save point may be one that the journal does not know, and would not miss: what
    was saved later has been taken back since.
    """
    kept = observed.checkpoint(row.checkpoint)
    unknown = (info for info in observed.unknown() if info.aside is None)
    return kept or newest(
        info
        for info in unknown
        if info.goes_on and info.incarnation == row.incarnation != ""
    )


def is_of(info: CheckpointInfo, ids: Collection[str]) -> bool:
    """Whether an id is that of a checkpoint, of its session or of its incarnation."""
    return bool({info.id, info.session, info.incarnation} & {*ids} - {""})


def takes_over(row: SessionRow, observed: Observed, tree: Tree) -> bool:
    """Whether a captured tree's checkpoint is the session from now on.

    Not if it was set aside, or the journal knows it from an earlier life.
    """
    saved = observed.checkpoint(tree.checkpoint)
    if saved is None:
        return False
    live = row.phase in LIVE and tree.incarnation == row.incarnation
    new = saved.id not in observed.known and saved.aside is None
    return live or new or saved.id == row.checkpoint

"""Orders a session's checkpoints, independently of the journal.

A journal may be too old: restored from a backup, rolled back with its machine, or lost.
Then the manifests in the store know better. The newest checkpoint is that of the
highest stamp (``CheckpointInfo.stamp``): the term of the service that ordered it, and
its number among those that this service has given out.

What a session came from (``CheckpointInfo.parent``) orders nothing. It tells what a
newer state has superseded from what a person has set aside.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE
from jupyterhub_gpu_reclaim.controlplane.model.rows import WHOEVER_COMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Tree
    from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow


def goes_back_to(checkpoint: str, observed: Observed) -> set[str]:
    """Those that it goes back to, as far as known, if no person has set them aside."""
    infos = {each.id: each for each in observed.saved or ()}
    found: set[str] = set()
    info = infos.get(checkpoint)
    while info is not None and info.parent not in found:
        found.add(info.parent)
        info = infos.get(info.parent)
    return {each for each in found if each not in infos or infos[each].aside is None}


def newest(infos: Iterable[CheckpointInfo]) -> CheckpointInfo | None:
    """That of the highest stamp."""
    return max(infos, key=lambda info: (info.stamp, info.id), default=None)


def highest(row: SessionRow, infos: Iterable[CheckpointInfo]) -> dict[str, Any]:
    """The row's columns of the highest stamp, once these were taken into account."""
    term, generation = max([row.stamp, *(info.stamp for info in infos)])
    return {"term": term, "generation": generation}


def is_anothers(row: SessionRow, info: CheckpointInfo) -> bool:
    """Whether it is of another account than the row, by what both of them say."""
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
    """What a session has left that has ended: what it came from, or a save point of it.

    Also one that the journal does not know, and would not miss: what was saved later
    has been taken back since.
    """
    kept = observed.checkpoint(row.checkpoint)
    unknown = (info for info in observed.unknown() if info.aside is None)
    return kept or newest(
        info
        for info in unknown
        if info.goes_on and info.incarnation == row.incarnation != ""
    )


def takes_over(row: SessionRow, observed: Observed, tree: Tree) -> bool:
    """Whether what a captured tree was saved as is the session from now on.

    Not one that was set aside, or that the journal knows of an earlier life.
    """
    saved = observed.checkpoint(tree.checkpoint)
    if saved is None:
        return False
    live = row.phase in LIVE and tree.incarnation == row.incarnation
    new = saved.id not in observed.known and saved.aside is None
    return live or new or saved.id == row.checkpoint


def agrees(pointer: str, info: CheckpointInfo, infos: Iterable[CheckpointInfo]) -> bool:
    """Whether the Hub remembers that checkpoint, or another one of the same session.

    Then its database is at most as old as the journal.

    Args:
        pointer: what the Hub remembers; empty: nothing.
        info: what comes back.
        infos: what is known of in journal and store.
    """
    its = {each.id for each in infos if each.session == info.session != ""}
    return pointer in {info.id, *its}

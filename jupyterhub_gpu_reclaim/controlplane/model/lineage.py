"""Orders a session's checkpoints, independently of the journal.

The newest checkpoint is that of the highest stamp (``CheckpointInfo.stamp``): the term
of the service that ordered it, and its number among those that this service has given
out.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.model.rows import Keeping

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow, SessionRow


def newest(infos: Iterable[CheckpointInfo]) -> CheckpointInfo | None:
    return max(infos, key=lambda info: (info.stamp, info.id), default=None)


def highest(row: SessionRow, infos: Iterable[CheckpointInfo]) -> dict[str, Any]:
    term, generation = max([row.stamp, *(info.stamp for info in infos)])
    return {"term": term, "generation": generation}


def is_anothers(row: SessionRow, info: CheckpointInfo) -> bool:
    mine = _is_same(row, info) or row.account in {"", info.account}
    return info.account != "" and not mine


def account(row: SessionRow, info: CheckpointInfo) -> str:
    """Return whose a session is, now that it is what was saved as that."""
    return row.account if _is_same(row, info) else info.account or row.account


def is_hidden(row: SessionRow, checkpoint: CheckpointRow) -> bool:
    """Whether a session's user can neither see nor bring back a checkpoint."""
    left = row.claimed and row.phase is Phase.STOPPED  # by a former account
    another = is_anothers(row, checkpoint.info)
    return left or another or checkpoint.keeping is Keeping.TO_DELETE


def chosen_since(
    row: SessionRow, kept: Iterable[CheckpointRow], saved: Collection[CheckpointInfo]
) -> CheckpointRow | None:
    """Return what a person has brought back, as the store says, and no journal.

    A journal that was put back has missed a newer one, which was set aside since; and
    what it has set aside itself is not, in the store.
    """
    if not (row.phase.live or row.phase in {Phase.STOPPED, Phase.SUSPENDING}):
        return None
    there = {info.id for info in saved if info.aside is None}
    there -= {info.parent for info in saved}
    aside = (each for each in kept if each.info.aside is not None)
    shown = (each for each in aside if not is_hidden(row, each) and each.id in there)
    return max(shown, key=lambda each: (each.stamp, each.id), default=None)


def _is_same(row: SessionRow, info: CheckpointInfo) -> bool:
    return info.session == row.session != ""


def is_of(info: CheckpointInfo, ids: Collection[str]) -> bool:
    """Whether an id is that of a checkpoint, of its session or of its incarnation."""
    return bool({info.id, info.session, info.incarnation} & {*ids} - {""})

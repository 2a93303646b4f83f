"""Orders a session's checkpoints, independently of the journal.

A journal may be too old: restored from a backup, rolled back with its machine, or lost.
Then the manifests in the store know better. A checkpoint is newer than the one its
incarnation was restored from (``CheckpointInfo.parent``), and otherwise newer than
those of a lower generation. Wall clocks order nothing; they only have a person asked
where nothing would be found else. Two that neither rule orders are rivals, and only a
person can choose.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.controlplane.loop.reconciler import Observed
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow


def ancestors(info: CheckpointInfo, infos: Iterable[CheckpointInfo]) -> set[str]:
    """Ids of the checkpoints that it goes back to, as far as known."""
    parents = {each.id: each.parent for each in infos}
    found: set[str] = set()
    parent = info.parent
    while parent and parent not in found:
        found.add(parent)
        parent = parents.get(parent, "")
    return found


def goes_back_to(checkpoint: str, observed: Observed) -> set[str]:
    """The same of one by its id; empty where it is not in the store."""
    info = observed.checkpoint(checkpoint)
    return set() if info is None else ancestors(info, observed.saved or ())


def newest(infos: Iterable[CheckpointInfo], pointer: str = "") -> list[CheckpointInfo]:
    """The newest one, followed by its rivals.

    Args:
        infos: of one session.
        pointer: what the Hub remembers; it comes first among rivals.
    """
    known = list(infos)
    older = {each for info in known for each in ancestors(info, known)}
    tips = [info for info in known if info.id not in older] or known
    # Only the chain of parents corrects a generation counter that was reset.
    highest = max((info.generation for info in tips), default=0)
    rivals = [info for info in tips if info.generation == highest]
    return sorted(rivals, key=lambda info: (info.id != pointer, info.id))


def found(
    row: SessionRow, observed: Observed, pointer: str = ""
) -> list[CheckpointInfo]:
    """The newest checkpoint that the journal missed, followed by its rivals.

    Empty if the journal knows one that is as new as those in the store. What the
    session's own checkpoint goes back to is none, whatever its generation says. Where
    the session has none of its own, what is later than the row counts as well: a
    journal that was lost in between has counted anew. The user is asked, so that a
    wrong clock does no harm.

    Args:
        row: the journal's row.
        observed: agent's and store's answers.
        pointer: the checkpoint that the Hub remembers; empty: none, or not asked.
    """
    saved = observed.saved or ()
    older = goes_back_to(row.checkpoint, observed)
    unknown = [info for info in observed.unknown() if info.id not in older]
    unknown = [info for info in unknown if not info.aside or info.id == pointer]
    missed = [
        info
        for info in unknown
        if info.id == pointer
        or info.generation > row.generation
        or (not row.checkpoint and info.created > row.since)
        or (row.checkpoint and row.checkpoint in ancestors(info, saved))
    ]
    return newest(missed, pointer)


def agrees(pointer: str, info: CheckpointInfo, infos: Iterable[CheckpointInfo]) -> bool:
    """Whether the Hub remembers that very checkpoint, or one that it goes back to.

    In the latter case the Hub's database is as old as the journal.
    """
    return bool(pointer) and (
        pointer == info.id or pointer in ancestors(info, list(infos))
    )

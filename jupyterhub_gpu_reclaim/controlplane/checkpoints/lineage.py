"""Which of a session's checkpoints is the newest, whatever the journal remembers.

A journal may be older than the world: restored from a backup, rolled back with its
machine, or lost. The manifests in the store then know better. They are ordered by what
cannot be wrong: a checkpoint is newer than the one that its incarnation was restored
from (``CheckpointInfo.parent``), and else than those of a lower generation. Wall clocks
order nothing. Two that neither rule orders are rivals, and only a person can choose.

Pure: the reconciler and the start planner act on the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.controlplane.model.actions import Facts
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow


def ancestors(info: CheckpointInfo, infos: Iterable[CheckpointInfo]) -> set[str]:
    """Ids of the checkpoints that it goes back to, as far as that is known."""
    parents = {each.id: each.parent for each in infos}
    found: set[str] = set()
    parent = info.parent
    while parent and parent not in found:
        found.add(parent)
        parent = parents.get(parent, "")
    return found


def newest(infos: Iterable[CheckpointInfo], pointer: str = "") -> list[CheckpointInfo]:
    """The newest one, and behind it its rivals.

    Args:
        infos: of one session.
        pointer: what the Hub remembers; it comes first among rivals.
    """
    known = list(infos)
    older = {each for info in known for each in ancestors(info, known)}
    tips = [info for info in known if info.id not in older] or known
    # A generation counter that began anew is put right by the chain alone.
    highest = max((info.generation for info in tips), default=0)
    rivals = [info for info in tips if info.generation == highest]
    return sorted(rivals, key=lambda info: (info.id != pointer, info.id))


def found(row: SessionRow, facts: Facts, pointer: str = "") -> list[CheckpointInfo]:
    """The newest checkpoint that the journal missed, and behind it its rivals.

    Empty where what the journal knows is as new as what is in the store.

    Args:
        row: the journal's word.
        facts: the store's.
        pointer: the checkpoint that the Hub remembers; empty: none, or not asked.
    """
    saved = facts.saved or ()
    missed = [
        info
        for info in facts.unknown()
        if info.id == pointer
        or info.generation > row.generation
        or (row.checkpoint and row.checkpoint in ancestors(info, saved))
    ]
    return newest(missed, pointer)


def agrees(pointer: str, info: CheckpointInfo, infos: Iterable[CheckpointInfo]) -> bool:
    """Whether the Hub remembers that very checkpoint, or one that it goes back to.

    The latter is a Hub whose database is as old as the journal.
    """
    return bool(pointer) and (
        pointer == info.id or pointer in ancestors(info, list(infos))
    )

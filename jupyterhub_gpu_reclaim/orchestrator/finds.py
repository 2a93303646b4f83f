"""What the journal takes over from the world when it did not hear of it in time.

Called by the worker and by a start that finds things different from the journal. Each
is one transaction; nothing is asked of anybody here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.models import Phase
from jupyterhub_gpu_reclaim.orchestrator import checkpoints
from jupyterhub_gpu_reclaim.orchestrator.phases import Happened
from jupyterhub_gpu_reclaim.orchestrator.rows import Keeping, SessionRow
from jupyterhub_gpu_reclaim.orchestrator.suspend import failure_of
from jupyterhub_gpu_reclaim.reasons import Reason

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.models import CheckpointInfo, Tree
    from jupyterhub_gpu_reclaim.orchestrator.acts import Facts
    from jupyterhub_gpu_reclaim.orchestrator.sessions import Sessions
    from jupyterhub_gpu_reclaim.orchestrator.settings import Settings


def running(
    sessions: Sessions, row: SessionRow, tree: Tree, settings: Settings
) -> SessionRow:
    """A tree runs that the journal did not know as running.

    The checkpoint that it came from is kept for the time of grace; any other one is
    put aside, because it is not what runs.
    """
    came_from = bool(row.checkpoint) and tree.checkpoint == row.checkpoint
    if came_from:
        kept = checkpoints.kept(
            sessions, row.checkpoint, Keeping.SUPERSEDED, settings.grace
        )
    else:
        kept = checkpoints.kept(
            sessions, row.checkpoint, Keeping.ASIDE, settings.set_aside
        )
    now = sessions.clock.now()
    return sessions.apply(
        row.key,
        Happened.FOUND_RUNNING,
        checkpoints=kept,
        incarnation=tree.incarnation,
        checkpoint=row.checkpoint if came_from else "",
        generation=max(row.generation, tree.generation),
        attempt="",
        placed=False,
        started_at=now,
        resumed_at=now if came_from else None,
    )


def lost(sessions: Sessions, row: SessionRow, saved: CheckpointInfo) -> SessionRow:
    """A session ended by itself soon after its return: back to what was saved."""
    return sessions.apply(
        row.key,
        Happened.LOST,
        failure=failure_of(Reason.ENDED_AFTER_RETURN),
        checkpoints=[checkpoints.current(saved, sessions.clock.now())],
        checkpoint=saved.id,
        attempt="",
    )


def captured(sessions: Sessions, row: SessionRow, saved: CheckpointInfo) -> SessionRow:
    """A tree stands captured that the journal did not know of."""
    return sessions.apply(
        row.key,
        Happened.FOUND_CAPTURED,
        checkpoints=[checkpoints.current(saved, sessions.clock.now())],
        incarnation=saved.incarnation,
        checkpoint=saved.id,
        generation=saved.generation,
        attempt="",
    )


def saved(
    sessions: Sessions, row: SessionRow, facts: Facts, settings: Settings
) -> None:
    """Checkpoints that the journal does not know: the newest may be the session.

    With no row at all the journal was lost, and the newest is what the session is
    suspended in. A stopped session was stopped by its user, so they are put aside.
    """
    now = sessions.clock.now()
    unknown = [info for info in facts.saved or () if info.id not in facts.known]
    found = row.phase is Phase.STOPPED and not row.since
    newest = unknown.pop() if found and unknown else None
    kept = [checkpoints.aside(info, now, settings.set_aside) for info in unknown]
    if newest is None:
        sessions.journal.keep(kept)
        sessions.touch(row.key)
        return
    sessions.apply(
        row.key,
        Happened.FOUND_SAVED,
        checkpoints=[*kept, checkpoints.current(newest, now)],
        incarnation=newest.incarnation,
        checkpoint=newest.id,
        generation=newest.generation,
    )

"""How long each checkpoint is kept, and deleting expired ones.

The functions above :func:`collect` make checkpoint rows, to be written in the same
transaction as the session's. A checkpoint that a session still needs is not deleted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow, Keeping

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

_log = logging.getLogger(__name__)
_LIVE = {Phase.RUNNING, Phase.WARNED, Phase.SUSPENDING}


def current(info: CheckpointInfo, now: float) -> CheckpointRow:
    """The checkpoint that its session is suspended in; kept without limit."""
    return CheckpointRow(
        id=info.id,
        key=info.key,
        generation=info.generation,
        keeping=Keeping.CURRENT,
        info=info,
        changed=now,
    )


def aside(info: CheckpointInfo, now: float, seconds: float | None) -> CheckpointRow:
    """A checkpoint that is set aside; None: not deleted by itself."""
    expires = None if seconds is None else now + seconds
    row = current(info, now)
    return msgspec.structs.replace(row, keeping=Keeping.ASIDE, expires=expires)


def kept(
    sessions: Sessions, checkpoint: str, keeping: Keeping, seconds: float | None = None
) -> list[CheckpointRow]:
    """The changed row of a known checkpoint; empty if there is none.

    Args:
        sessions: where the journal and the clock are.
        checkpoint: its id; may be empty.
        keeping: why it is kept from now on.
        seconds: for how long; None: without limit.
    """
    row = sessions.journal.checkpoint(checkpoint) if checkpoint else None
    if row is None:
        return []
    now = sessions.clock.now()
    expires = None if seconds is None else now + seconds
    return [msgspec.structs.replace(row, keeping=keeping, changed=now, expires=expires)]


def settled(sessions: Sessions, key: SessionKey, seconds: float) -> list[CheckpointRow]:
    """Those set aside without limit, now that another one was chosen."""
    expires = sessions.clock.now() + seconds
    return [
        msgspec.structs.replace(row, expires=expires)
        for row in sessions.journal.checkpoints(key)
        if row.keeping is Keeping.ASIDE and row.expires is None
    ]


def former(sessions: Sessions, key: SessionKey) -> str:
    """The checkpoint that a running session came from, while it is kept."""
    rows = sessions.journal.checkpoints(key)
    ids = [row.id for row in rows if row.keeping is Keeping.SUPERSEDED]
    return ids[-1] if ids else ""


async def collect(sessions: Sessions, agent: Agent) -> None:
    """Delete expired checkpoints; a failed deletion is tried again.

    For a session that was not found to be as the journal says, only a person's order is
    enough: if the journal is older than the store, what looks superseded may be all
    there
    is.
    """
    for due in sessions.journal.due(sessions.clock.now()):
        runtime = sessions.runtime(due.key)
        if due.keeping is not Keeping.DOOMED and not runtime.compared:
            continue
        row = sessions.journal.session(due.key)
        stands_on = row is not None and row.checkpoint == due.id
        if stands_on and row is not None and row.phase not in _LIVE:
            continue
        try:
            await agent.discard(due.id)
        except Unreachable:
            return
        except ReclaimError as error:
            _log.warning("%s: checkpoint %s not deleted: %s", due.key, due.id, error)
            continue
        _log.info("%s: checkpoint %s deleted (%s)", due.key, due.id, due.keeping.value)
        sessions.journal.drop(due.id)
        sessions.runtime(due.key).deleted |= {due.id}
        after = sessions.journal.session(due.key)
        if after is not None and after.checkpoint == due.id and after.phase in _LIVE:
            sessions.update(due.key, checkpoint="")
        else:
            sessions.touch(due.key)

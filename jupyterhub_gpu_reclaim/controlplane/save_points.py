"""Save points: a session that runs is saved, and goes on.

It goes back to its save point if its programs end, or are lost with their node; its
user is asked then. By rule it is saved again only if it was used since, and in a lull:
it stands still for it, which whoever types notices. Anyone who never pauses is not
waited for beyond a third of that while. One that holds a GPU would stand still until
its memory is out and in again, so it is saved once in each nap instead.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration, size
from jupyterhub_gpu_reclaim.controlplane import operations, retention
from jupyterhub_gpu_reclaim.controlplane.session import LIVE, NO_ORDER, Intent
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Failure, Usage
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


_log = logging.getLogger(__name__)

#: Seconds without use after which nobody is in the middle of a line.
LULL: Final = 30.0
#: Part of the while between two save points for which a lull is waited for.
_PUT_OFF: Final = 1 / 3


async def save(sessions: Sessions, row: SessionRow, by: str) -> None:
    """Save a running session; an order to do so in its row is then carried out.

    Raises:
        Unreachable: the agent was lost on the way; it may go on there.
        Refused: ``operation_in_flight``: another one has to end first.
    """
    # However it ends, no rule repeats it at once.
    runtime, now = sessions.runtime(row.key), sessions.clock.now()
    every = sessions.saved_every(row.key)
    runtime.saves_failed += 1  # until it has not
    pause = sessions.settings.pause_after(runtime.saves_failed)
    runtime.save_again = now + min(every, pause)
    generation = sessions.next_generation(row.key)
    order = orders.Save(sessions.new_id(), generation, name=row.save_name)
    end = await operations.end_of(
        sessions, row, order, "save", is_over=partial(_is_wanted_otherwise, sessions)
    )
    if end.checkpoint is not None:
        runtime.saves_failed, runtime.save_again = 0, now + every
        _note_saved(sessions, row, by, end.checkpoint)
    elif end.failure is not None:
        if end.failure.code == Reason.OPERATION_IN_FLIGHT.value:
            raise codec.error_of(end.failure, Refused)
        _note_failed(sessions, row, by, end.failure)


def _is_wanted_otherwise(sessions: Sessions, row: SessionRow) -> bool:
    ordered = row.intent not in {Intent.NONE, Intent.SAVE}
    return ordered or sessions.drains.of_session(row) is not None


def _note_saved(
    sessions: Sessions, row: SessionRow, by: str, info: CheckpointInfo
) -> None:
    now = sessions.row(row.key)
    sessions.counters.ended("save", "ok")
    if now.incarnation != row.incarnation or now.phase not in LIVE:
        return  # it is found in the store
    note = (
        f"{size(info.logical_bytes)}, {size(info.stored_bytes)} of it newly"
        f" written; it stood still for {duration(info.frozen_seconds)}."
    )
    if info.not_kept:
        note += f" No copy is kept of {info.not_kept}."
    sessions.counters.still.observe(info.frozen_seconds)
    sessions.update(
        row.key,
        sessions.audit_line(row.key, by, "save point", note),
        checkpoints=sessions.found([info]),
        checkpoint=info.id,
        failure=None,
        **retention.highest(now, [info]),
        **_cleared_order(row, now),
    )


def _note_failed(
    sessions: Sessions, row: SessionRow, by: str, failure: Failure
) -> None:
    now = sessions.row(row.key)
    sessions.counters.ended("save", "failed", failure.code)
    if failure.code == Reason.CANCELLED.value:
        return  # where nobody wants anything else, it is tried again
    if now.incarnation != row.incarnation or now.phase not in LIVE:
        return
    _log.info("%s: not saved: %s", row.key, failure.message)
    line = sessions.audit_line(row.key, by, "save point failed", failure.message)
    shown = now.failure if by == SERVICE else failure
    sessions.update(row.key, line, failure=shown, **_cleared_order(row, now))


# --- by rule
def is_due(sessions: Sessions, row: SessionRow) -> bool:
    every = sessions.saved_every(row.key)
    now, runtime = sessions.clock.now(), sessions.runtime(row.key)
    if not every or row.phase not in LIVE or runtime.suspends_at is not None:
        return False
    last = last_saved(sessions, row)
    if now < runtime.save_again:
        return False
    nap = runtime.nap
    if nap is not None:
        return last is None or last < nap.begun
    if runtime.usage is None or runtime.cards:
        return False
    if last is None:
        last = row.resumed_at or row.started_at or row.since
    used = runtime.usage.used_since(last)
    return used and is_time(now, last, every, runtime.usage)


def _cleared_order(row: SessionRow, now: SessionRow) -> dict[str, Any]:
    if now.intent is not Intent.SAVE or now.save_name != row.save_name:
        return {}
    return {**NO_ORDER}


def is_time(now: float, last: float, every: float, usage: Usage) -> bool:
    """Whether a session in use is saved now; a silent cell is no obstacle. Pure."""
    over = now - last - every
    active = usage.last_active
    is_lull = active is not None and now - active >= LULL
    return over >= (0.0 if is_lull else every * _PUT_OFF)


def last_saved(sessions: Sessions, row: SessionRow) -> float | None:
    saved = sessions.journal.checkpoint(row.checkpoint)
    if saved is None or not saved.is_of(row.incarnation):
        return None
    return saved.info.created

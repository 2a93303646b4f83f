"""Save point: a session that runs is saved, and goes on.

A session goes back to its save point if its programs end, or are lost with their node;
its user is asked then. The newest one is kept as long as it runs. The agent calls a
save off by itself for whatever else is ordered, and the session goes on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration, size
from jupyterhub_gpu_reclaim.controlplane.model import lineage
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Failure
    from jupyterhub_gpu_reclaim.controlplane.flows.operations import Operations
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

_log = logging.getLogger(__name__)


class Saver:
    def __init__(
        self,
        sessions: Sessions,
        operations: Operations,
        new_id: Callable[[], str],
    ) -> None:
        self._sessions = sessions
        self._operations = operations
        self._new_id = new_id

    async def save(self, row: SessionRow, by: str) -> None:
        """Save a running session; an order to do so in its row is then carried out.

        Raises:
            Unreachable: the agent was lost on the way; it may go on there.
            Refused: ``operation_in_flight``: another one has to end first.
        """
        generation = self._sessions.next_generation(row.key)
        order = orders.Save(self._new_id(), generation, name=row.save_name)
        end = await self._operations.end_of(
            row, order, "save", is_over=self._is_wanted_otherwise
        )
        if end.checkpoint is not None:
            self._note_saved(row, by, end.checkpoint)
        elif end.failure is not None:
            if end.failure.code == Reason.OPERATION_IN_FLIGHT.value:
                raise codec.error_of(end.failure, Refused)
            self._note_failed(row, by, end.failure)

    def _is_wanted_otherwise(self, row: SessionRow) -> bool:
        ordered = row.intent not in {Intent.NONE, Intent.SAVE}
        return ordered or self._sessions.drains.of_session(row) is not None

    def _note_saved(self, row: SessionRow, by: str, info: CheckpointInfo) -> None:
        sessions, now = self._sessions, self._sessions.row(row.key)
        self._sessions.counters.ended("save", "ok")
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
            **lineage.highest(now, [info]),
            **_cleared_order(row, now),
        )

    def _note_failed(self, row: SessionRow, by: str, failure: Failure) -> None:
        sessions, now = self._sessions, self._sessions.row(row.key)
        self._sessions.counters.ended("save", "failed", failure.code)
        if failure.code == Reason.CANCELLED.value:
            return  # where nobody wants anything else, it is tried again
        if now.incarnation != row.incarnation or now.phase not in LIVE:
            return
        _log.info("%s: not saved: %s", row.key, failure.message)
        line = sessions.audit_line(row.key, by, "save point failed", failure.message)
        shown = now.failure if by == SERVICE else failure
        sessions.update(row.key, line, failure=shown, **_cleared_order(row, now))


def _cleared_order(row: SessionRow, now: SessionRow) -> dict[str, Any]:
    """Return the columns without that order, unless another was given since."""
    if now.intent is not Intent.SAVE or now.save_name != row.save_name:
        return {}
    return {"intent": Intent.NONE, "intent_by": "", "save_name": ""}

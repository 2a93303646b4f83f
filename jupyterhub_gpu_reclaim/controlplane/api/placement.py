"""A start after its plan: placed, followed or cancelled.

Records what the spawner reports and adds the session's key to the work queue. The
restore itself is ordered by the worker (``flows/resume.py``).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.models import Event, Phase, Placement, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.api.spawning import Spawning
from jupyterhub_gpu_reclaim.controlplane.checkpoints import expiry
from jupyterhub_gpu_reclaim.controlplane.flows import login_renewal
from jupyterhub_gpu_reclaim.controlplane.flows.suspend import failure_of
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE, Happened
from jupyterhub_gpu_reclaim.controlplane.model.rows import Keeping, SessionRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Placing(Spawning):
    """The spawner's calls between its plan and a session that answers."""

    def placed(self, placement: Placement) -> None:
        """See ``Controller.placed``."""
        key, sessions = placement.key, self._sessions
        row = sessions.row(key)
        if row.phase is Phase.RESUMING and row.incarnation == placement.incarnation:
            sessions.update(key, placed=True)
            login_renewal.done(sessions, key)  # the spawner has seen to it by now
        elif placement.checkpoint:
            raise Refused(Reason.WRONG_PHASE, phase=row.phase.value, action="be placed")
        else:
            self._started(row, placement)
        self._look(key)

    def _started(self, row: SessionRow, placement: Placement) -> None:
        """A cold start; a checkpoint, if there is one, is set aside."""
        if row.phase in LIVE and row.incarnation == placement.incarnation:
            return
        kept = expiry.kept(
            self._sessions, row.checkpoint, Keeping.ASIDE, self._settings.set_aside
        )
        stopped = row.phase in {*LIVE, Phase.STOPPED}
        self._sessions.apply(
            row.key,
            Happened.STARTED if stopped else Happened.FOUND_RUNNING,
            checkpoints=kept,
            incarnation=placement.incarnation,
            checkpoint="",
            dismissed=row.checkpoint or row.dismissed,
            attempt="",
            placed=False,
            failures=0,
            backoff_until=None,
            stop_asked=None,
            started_at=self._sessions.clock.now(),
            resumed_at=None,
        )

    async def progress(self, key: SessionKey, after: int) -> AsyncIterator[Event]:
        """See ``Controller.progress``."""
        operation = self._sessions.operation(key)
        row = self._sessions.row(key)
        if operation is not None and operation.kind != "resume":
            operation = None
        if row.phase is Phase.RESUMING and operation is None:
            operation = self._sessions.begin(key, "resume")
        if operation is not None and (row.phase is Phase.RESUMING or operation.ended):
            async for event in operation.read(after):
                yield event
            return
        if row.phase in LIVE:
            yield Event(tree=await self._agent.tree(row.incarnation))
            return
        yield Event(failure=row.failure or failure_of(Reason.CANCELLED))

    async def cancelled(self, placement: Placement) -> None:
        """See ``Controller.cancelled``."""
        row = self._sessions.row(placement.key)
        if row.incarnation == placement.incarnation:
            self._cancel(row, placement)
        with suppress(Unreachable, Refused):
            await self._resumer.kill(placement.incarnation)
        self._look(placement.key)

    def _cancel(self, row: SessionRow, placement: Placement) -> None:
        sessions = self._sessions
        if row.phase is Phase.RESUMING:
            operation = sessions.operation(row.key)
            failed = operation is not None and operation.ended
            self._resumer.failed(row, row.failure if failed else placement.failure)
        elif row.phase in LIVE and row.checkpoint == placement.checkpoint != "":
            # It ran for a moment and never answered the Hub.
            sessions.apply(
                row.key,
                Happened.LOST,
                checkpoints=expiry.kept(sessions, row.checkpoint, Keeping.CURRENT),
            )
        elif row.phase in LIVE:
            sessions.apply(row.key, Happened.STOPPED, checkpoint="")

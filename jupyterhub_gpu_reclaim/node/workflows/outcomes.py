"""How orders have ended, and which checkpoints are leased or still needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import Event, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations.records import SAVED, Record, Stage
from jupyterhub_gpu_reclaim.node.sessions import trees

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.node.operations.operations import Operations
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.node.sessions.placements import Placements
    from jupyterhub_gpu_reclaim.node.workflows.tools import WorkflowTools

_NEEDED = SAVED | {Stage.RESTORING, Stage.CONTINUING}


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """How orders have ended, and which checkpoints are still needed."""

    placements: Placements
    tools: WorkflowTools

    def captured(self, incarnation: str, checkpoint: str) -> Event | None:
        """How that capture ended, if it has."""
        record = self.tools.records.find(incarnation)
        if record is not None and record.checkpoint == checkpoint:
            if record.stage is Stage.FAILED and record.failure is not None:
                return Event(failure=record.failure)
            if record.stage not in SAVED:
                return None
        if not self.tools.store.exists(checkpoint):
            return None
        info = self.tools.store.info(checkpoint)
        return Event(checkpoint=info) if info.incarnation == incarnation else None

    def restored(self, session: Session, checkpoint: str) -> Event | None:
        """How that restore ended, if it has; refuses one that cannot begin."""
        record = trees.record_of(self.tools.records, session)
        tree = trees.tree_of(session, record, None)
        if record is not None and record.checkpoint == checkpoint:
            failure = record.failure if record.stage is Stage.FAILED else None
            # Told of any other, the caller asks again when it may go better. Of this
            # one it was not reported: it may be the restore that has ended the agent.
            if failure is not None and failure.code == Reason.AGENT_RESTARTED.value:
                return Event(failure=failure)
            if record.stage is Stage.RESTORED:
                return Event(tree=tree)
        info = self.tools.store.info(checkpoint)
        if tree.state is not TreeState.HOLDING:
            raise Refused(
                Reason.WRONG_PHASE,
                phase=tree.state.value,
                action="take up a suspended session",
            )
        if info.key != session.key:
            raise Refused(Reason.RENAMED, there=info.key, here=session.key)
        return None

    def refuse_if_leased(
        self, operations: Operations, incarnation: str, checkpoint: str
    ) -> None:
        """A checkpoint is restored in one place at a time.

        The holder of the lease is looked up: an incarnation whose tree exists, stopped
        or running, has it; one that has ended has lost it.
        """
        busy = Refused(Reason.CHECKPOINT_BUSY)
        if operations.restoring(checkpoint):
            raise busy
        for record in self.tools.records.list():
            if record.incarnation == incarnation or not _holds(record, checkpoint):
                continue
            if self._stands(record):
                raise busy

    def refuse_if_needed(self, checkpoint: str) -> None:
        """Refuse to delete the only image of a stopped tree.

        Raises:
            Refused: ``wrong_phase``.
        """
        for record in self.tools.records.list():
            if record.checkpoint != checkpoint or record.stage not in _NEEDED:
                continue
            if self._stands(record):
                raise Refused(
                    Reason.WRONG_PHASE, phase=record.stage.value, action="be discarded"
                )

    def _stands(self, record: Record) -> bool:
        try:
            session = self.placements.find(record.incarnation, record.hint.pod)
            if not trees.matches(record, session):
                return False
            return trees.has_programs(session)
        except NotFound:
            return False


def _holds(record: Record, checkpoint: str) -> bool:
    if record.stage is Stage.SETTLED:
        return record.parent == checkpoint
    needs = record.stage in _NEEDED | {Stage.RESTORED}
    return needs and record.checkpoint == checkpoint

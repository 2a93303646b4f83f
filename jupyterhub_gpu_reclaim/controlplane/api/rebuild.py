"""Compares the journal with store and Hub for all sessions, on an operator's order.

The reconciler adopts by itself what the journal has missed, and asks a session's user
if the Hub does not remember the same. After a disaster an administrator knows better:
:meth:`Rebuild.run` settles these questions in favour of the newest checkpoint. It
deletes nothing and starts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.models import Compared, HubState, Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.checkpoints import lineage
from jupyterhub_gpu_reclaim.controlplane.flows import adoption
from jupyterhub_gpu_reclaim.controlplane.loop.reconciler import settle
from jupyterhub_gpu_reclaim.controlplane.model.actions import ActionKind

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.loop.observer import Observer
    from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions


class Rebuild:
    """Compares the journal with the store, and corrects it."""

    def __init__(
        self, sessions: Sessions, observer: Observer, settings: Settings
    ) -> None:
        self._sessions = sessions
        self._observer = observer
        self._settings = settings

    async def compare(self) -> list[Compared]:
        """Compare all sessions; list those with a checkpoint, or with fewer than known.

        Raises:
            Unreachable: agent, store or Hub do not answer, so nothing is known.
        """
        return [
            compared(self._sessions.row(key), observed)
            for key, observed in await self._observe_all()
            if observed.saved or self._sessions.row(key).checkpoint
        ]

    async def run(self, by: str) -> list[Compared]:
        """Bring the journal in line with the store; return what was done.

        A session with a question to its user returns at the next visit instead. One
        whose newest checkpoint is missing in the store is left to its user. Idempotent.

        Args:
            by: who gave the order.

        Raises:
            Unreachable: agent, store or Hub do not answer; nothing is changed.
        """
        found = []
        for key, observed in await self._observe_all():
            row = self._sessions.row(key)
            before = compared(row, observed)
            done = self._take_missed(row, observed)
            done = self._answer_for_user(key, by) or done
            if observed.saved or row.checkpoint:
                now = observed._replace(known=self._sessions.known(key))
                after = compared(self._sessions.row(key), now)
                found.append(
                    msgspec.structs.replace(after, unknown=before.unknown, done=done)
                )
        return found

    async def _observe_all(self) -> list[tuple[SessionKey, Observed]]:
        state = await self._observer.observe_all(0.0)
        self._observer.refuse_silence(state)
        keys = {row.key for row in self._sessions.journal.sessions()} | state.keys()
        return [(key, self._observer.of(key, state)) for key in sorted(keys)]

    def _take_missed(self, row: SessionRow, observed: Observed) -> str:
        action = settle(row, observed, self._sessions.clock.now(), self._settings)
        if action.kind not in {ActionKind.FOUND_SAVED, ActionKind.SET_ASIDE}:
            return ""
        adoption.saved(self._sessions, row, observed, self._settings)
        return "taken over"

    def _answer_for_user(self, key: SessionKey, by: str) -> str:
        """Answer in the user's place: the newest checkpoint is to come back."""
        row = self._sessions.row(key)
        if not _waits_for_user(row):
            return ""
        line = self._sessions.audit_line(key, by, "journal rebuilt")
        self._sessions.update(key, line, failure=None)
        return "comes back at the next visit"


def compared(row: SessionRow, observed: Observed) -> Compared:
    """Compare one session; pure."""
    newest = lineage.newest(observed.saved or ())
    unknown = [info.id for info in observed.unknown()]
    return Compared(
        key=row.key,
        phase=row.phase,
        checkpoint=row.checkpoint,
        newest=newest.id if newest else "",
        unknown=unknown,
        state=_state(row, observed),
    )


def _state(row: SessionRow, observed: Observed) -> str:
    stopped = observed.hub is HubState.STOPPED and not observed.left()
    if stopped and lineage.missed(row, observed):
        return "newer"
    if row.phase is Phase.SUSPENDED and not observed.checkpoint(row.checkpoint):
        return "missing"
    if _waits_for_user(row):
        return "asks"
    return "unknown" if observed.unknown() else "same"


def _waits_for_user(row: SessionRow) -> bool:
    return row.failure is not None and row.failure.code == Reason.SAVED_FOUND.value

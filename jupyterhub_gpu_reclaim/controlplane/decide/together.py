"""Servers of one user that belong together: all of them are suspended, or none.

A rule says which servers belong together. Everything else is read from the rows, so a
crash at any point is settled by the same answers: a member that is saved waits, frozen,
for the others (``waits``), and goes on where one of them does (``breaks``). Nothing is
ended before all are saved. Where its node is drained, or the Hub was asked to stop it
already, a session goes whatever the others do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import CALLED_OFF, Reason
from jupyterhub_gpu_reclaim.controlplane.decide.sampler import snapshot_of
from jupyterhub_gpu_reclaim.controlplane.session import (
    LIVE,
    NO_ORDER,
    SAVED,
    Intent,
    failure_of,
)
from jupyterhub_gpu_reclaim.policy.decide import deny

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Decision, Failure, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.decide.sampler import Decide
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


@dataclass(eq=False)
class Together:
    sessions: Sessions
    decide: Decide

    def members(self, row: SessionRow) -> list[SessionRow]:
        """Return the other sessions that belong to it; none that is stopped."""
        rule = self._rule(row.key)
        if not rule:
            return []
        return [
            each
            for each in self.sessions.journal.sessions()
            if (each.key.user, each.account) == (row.key.user, row.account)
            and each.key != row.key
            and each.phase is not Phase.STOPPED
            and self._rule(each.key) == rule
        ]

    def _rule(self, key: SessionKey) -> str:
        terms = self.sessions.policies(key)
        return terms.by["together"] if terms.together else ""

    # --- before a suspend
    def against(self, row: SessionRow, now: float, wanted: int = 0) -> Decision | None:
        for each in self.members(row):
            if each.phase is Phase.RESUMING or each.intent is Intent.RESUME:
                why = "It is coming back."
            elif each.phase in LIVE:
                snapshot = snapshot_of(self.sessions, each)
                snapshot = msgspec.structs.replace(
                    snapshot, wanted=max(wanted, snapshot.wanted)
                )
                decisions = self.decide(snapshot, now)
                if not decisions or decisions[0].reclaim:
                    continue
                why = decisions[0].message
            else:
                continue
            return deny(Reason.TOGETHER_BUSY, member=each.key, why=why)
        return None

    def wanted(self, row: SessionRow) -> int:
        runtimes = map(
            self.sessions.runtime, [m.key for m in [row, *self.members(row)]]
        )
        return max(each.wanted or bool(each.goes_for) for each in runtimes)

    def take_along(self, row: SessionRow, by: str) -> None:
        for each in self.members(row):
            if each.phase in LIVE and each.intent is not Intent.SUSPEND:
                self.sessions.order(each.key, Intent.SUSPEND, by)

    # --- while they are saved
    def breaks(self, row: SessionRow) -> Failure | None:
        others = [] if self._goes_anyway(row) else self.members(row)
        if not others:
            return None
        going_on = [
            e for e in others if e.phase in LIVE and e.intent is not Intent.SUSPEND
        ]
        failed = [e for e in going_on if e.failure and e.failure.code not in CALLED_OFF]
        if failed and failed[0].failure:
            return _member_failure(failed[0], failed[0].failure.message)
        back = row.intent is Intent.RESUME
        if back or going_on or any(each.phase is Phase.RESUMING for each in others):
            return failure_of(Reason.CANCELLED)
        return None

    def waits(self, row: SessionRow) -> Failure | None:
        """Return whom a saved session waits for, as the failure of a timeout."""
        if not self._goes_anyway(row):
            for each in self.members(row):
                if each.phase not in SAVED:
                    return _member_failure(each, "It was not saved in time.")
        return None

    def _goes_anyway(self, row: SessionRow) -> bool:
        drained = self.sessions.drains.of_session(row) is not None
        return drained or row.stop_asked is not None

    def went_on(self, row: SessionRow) -> None:
        """Let the others go on with it: those that have not begun, or have gone.

        Those that are being saved see that for themselves (``breaks``).
        """
        for each in self.members(row):
            if each.intent is Intent.SUSPEND:
                self.sessions.update(each.key, **NO_ORDER)
                self.sessions.look(each.key)
            elif row.phase in SAVED and _has_gone_with(each, row):
                self.sessions.order_return(each)

    # --- on the way back
    def come_back(self, row: SessionRow) -> None:
        """Order the others' return, but not of one whose user has to decide first."""
        for each in self.members(row):
            if each.phase in SAVED:
                self.sessions.order_return(each)


def _has_gone_with(member: SessionRow, row: SessionRow) -> bool:
    """Whether it ended since that one was saved, or the Hub was asked to end it."""
    if member.phase is Phase.SUSPENDED:
        return member.since >= row.since
    return member.phase is Phase.RELEASING and member.stop_asked is not None


def _member_failure(member: SessionRow, why: str) -> Failure:
    return failure_of(Reason.TOGETHER_FAILED, member=member.key, why=why)

"""Judges a session, and warns before a suspend.

It suspends nothing. The end of a warning is only in memory: after a restart of the
service a session is warned again, for the full time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane.model.phases import Happened

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey, Verdict
    from jupyterhub_gpu_reclaim.controlplane.decide.sampler import Watch
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Decide
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions


class Courtesy:
    """Judges, warns, and confirms before the suspend.

    Args:
        sessions: the rows and the runtime state.
        watch: for the last sample.
        decide: the policy.
        warn_for: seconds between the warning and the suspend, unless a rule sets them;
            0: no warning.
    """

    def __init__(
        self, sessions: Sessions, watch: Watch, decide: Decide, warn_for: float
    ) -> None:
        self._sessions = sessions
        self._watch = watch
        self._decide = decide
        self._warn_for = warn_for

    def judge(self, row: SessionRow) -> bool:
        """Ask the policy; returns whether the session is to be suspended."""
        view = self._sessions.view(row.key)
        verdicts = list(self._decide(view, self._sessions.clock.now()))
        self._sessions.judged(row.key, verdicts)
        return bool(verdicts) and verdicts[0].reclaim

    def why(self, key: SessionKey) -> Verdict:
        """The deciding reason of the last judgement."""
        return self._sessions.verdicts(key)[0]

    def spared(self) -> list[SessionKey]:
        """Sessions that were warned and are to be left alone after all."""
        warned = [self._sessions.row(key) for key in self._sessions.warned()]
        return [
            row.key
            for row in warned
            if row.phase is Phase.WARNED and not self.judge(row)
        ]

    def spare(self, row: SessionRow) -> None:
        """Take a warning back, if there was one."""
        if row.phase is Phase.WARNED:
            self._note(row, Happened.STAYS)

    def warn(self, row: SessionRow) -> float:
        """Warn a session that the policy wants to suspend.

        Returns:
            Seconds for which the warning still stands; 0: it is over.
        """
        now, due = self._sessions.clock.now(), self._sessions.suspends_at(row.key)
        if row.phase is Phase.WARNED and due is not None:
            return max(0.0, due - now)
        warn_for = self._seconds(row)
        if warn_for <= 0:
            return 0.0
        self._sessions.warn(row.key, now + warn_for)
        if row.phase is Phase.WARNED:
            self._sessions.touch(row.key)
        else:
            left = duration(warn_for)
            self._note(
                row,
                Happened.WARNED,
                f" It is suspended in {left} unless somebody uses it.",
            )
        return warn_for

    def _seconds(self, row: SessionRow) -> float:
        """For how long that session is warned."""
        terms = self._sessions.terms_of(row)
        ruled = terms.warn_for if terms is not None else None
        return self._warn_for if ruled is None else ruled

    async def confirm(self, row: SessionRow) -> bool:
        """Sample once more, since the last judgement may be old, and judge again.

        Raises:
            Unreachable: no fresh sample can be had.
        """
        seen = await self._watch.refresh(row)
        # A session whose node is silent was not looked at: it may be at work.
        return seen and self._sessions.row(row.key) == row and self.judge(row)

    def _note(self, row: SessionRow, happened: Happened, more: str = "") -> None:
        why = self.why(row.key)
        why = msgspec.structs.replace(why, message=why.message + more)
        self._sessions.apply(row.key, happened, failure=row.failure, why=why)

"""Warnings before a suspend: given, taken back, and confirmed at their end.

Nothing is suspended here. A warning is only in memory: after a restart of the service
a session is warned again, for the full time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane.decide import draining
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.decide.judge import Judge
    from jupyterhub_gpu_reclaim.controlplane.decide.sampler import SessionSampler
    from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


@dataclass(eq=False)
class Warnings:
    sessions: Sessions
    sampler: SessionSampler
    judge: Judge
    together: Together

    def spared(self) -> list[SessionKey]:
        runtimes = self.sessions.runtimes.items()
        warned = [key for key, each in runtimes if each.suspends_at is not None]
        rows = map(self.sessions.row, warned)
        return [row.key for row in rows if not self.judge.reclaims(row)]

    def spare(self, row: SessionRow) -> None:
        runtime = self.sessions.runtime(row.key)
        if runtime.suspends_at is not None:
            runtime.suspends_at = None
            self._note(row, "stays")

    def warn(self, row: SessionRow) -> float:
        runtime, now = self.sessions.runtime(row.key), self.sessions.clock.now()
        due, warn_for = runtime.suspends_at, self._seconds(row)
        if due is not None:
            if due > now + warn_for:  # its node has less time than it had
                runtime.suspends_at = due = now + warn_for
                self.sessions.touch(row.key)
            return max(0.0, due - now)
        if warn_for > 0:
            runtime.suspends_at = now + warn_for
            goes = draining.decision(self.sessions, row) is not None
            unless = "" if goes else " unless somebody uses it"
            more = f" It is suspended in {duration(warn_for)}{unless}."
            self._note(row, "warned", more)
        return max(0.0, warn_for)

    def _seconds(self, row: SessionRow) -> float:
        all_of_them = [row, *self.together.members(row)]
        return draining.warn_for(
            self.sessions, row, max(map(self._usually, all_of_them))
        )

    def _usually(self, row: SessionRow) -> float:
        policy = self.sessions.policy_of(row)
        ruled = policy.warn_for if policy is not None else None
        return self.sessions.settings.warn_for if ruled is None else ruled

    async def confirm(self, row: SessionRow) -> bool:
        """Sample once more, since the last judgement may be old, and judge again."""
        if not await self.is_fresh(row):
            return False
        await self.judge.probing.ask_now(row)
        return self.sessions.row(row.key) == row and self.judge.reclaims(row)

    async def is_fresh(self, row: SessionRow) -> bool:
        """Sample once more; whether that succeeded and it is still the same session.

        Raises:
            Unreachable: no fresh sample can be had.
        """
        seen = await self.sampler.refresh(row)
        # A session whose node is silent was not sampled: it may be at work.
        return seen and self.sessions.row(row.key) == row

    def _note(self, row: SessionRow, what: str, more: str = "") -> None:
        why = self.judge.why(row.key)
        told = f"{why.message}{more}", why.code
        line = self.sessions.audit_line(row.key, SERVICE, what, *told)
        self.sessions.update(row.key, line)

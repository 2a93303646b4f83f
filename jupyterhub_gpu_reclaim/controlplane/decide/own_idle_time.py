"""Users' own idle times, within the administrator's bounds.

A rule that gives a session a shorter time, or none, stands above its user's wish; the
bounds hold as they are now, whatever they were when it was chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.models import OwnIdleTime, SessionPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings


class OwnIdleTimes:
    """Applies users' own idle times to the settings of their sessions.

    Args:
        journal: knows the wishes.
        settings: the bounds.
        policies: what rules set; None: there are no rules.
    """

    def __init__(
        self,
        journal: Journal,
        settings: Settings,
        policies: Callable[[SessionKey], SessionPolicy] | None,
    ) -> None:
        self._journal = journal
        self._shortest = settings.own_idle_shortest
        self._longest = settings.own_idle_longest
        self._policies = policies

    def __call__(self, key: SessionKey) -> SessionPolicy:
        """Return the settings that hold for that session now."""
        policy = self._policies(key) if self._policies else SessionPolicy()
        row = self._journal.session(key)
        if row is None or row.own_idle_time is None:
            return policy
        wish = min(max(row.own_idle_time, self._shortest), self._longest)
        ruled = policy.idle_after
        if ruled is not None and ruled <= wish:  # 0: never for being idle
            return policy
        return msgspec.structs.replace(policy, idle_after=wish, chosen=True)

    def of(self, row: SessionRow) -> OwnIdleTime:
        """Return the user's choice, and the bounds of it."""
        return OwnIdleTime(
            chosen=row.own_idle_time, shortest=self._shortest, longest=self._longest
        )

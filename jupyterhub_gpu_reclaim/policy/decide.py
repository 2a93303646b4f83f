"""The one decision about a session, from all guards and policies, with every reason.

Pure: the same snapshot at the same time always gets the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.models import Verdict
    from jupyterhub_gpu_reclaim.policy.base import Policy, SessionSnapshot
    from jupyterhub_gpu_reclaim.policy.guards import Guards


class Decider:
    """Asks the guards, then the policies.

    Args:
        guards: one veto is enough.
        policies: one that says "reclaim" is enough; if none does, the reasons of the
        first
            one are given.
    """

    def __init__(self, guards: Guards, policies: Sequence[Policy]) -> None:
        self.guards = guards
        self.policies = policies

    def __call__(self, snapshot: SessionSnapshot, now: float) -> list[Verdict]:
        """Every reason, the deciding one first; never empty.

        When all reasons against it are known to end, the deciding one's ``at`` is the
        time when the last of them does.
        """
        vetoes = self.guards.vetoes(snapshot, now)
        answers = [policy.reasons(snapshot, now) for policy in self.policies]
        wanted = next((each for each in answers if each[0].reclaim), None)
        if not vetoes and wanted is not None:
            return wanted
        against = vetoes + (answers[0] if wanted is None else [])
        ends = [verdict.at for verdict in against if verdict.at is not None]
        at = max(ends) if len(ends) == len(against) else None
        return [msgspec.structs.replace(against[0], at=at), *against[1:]]

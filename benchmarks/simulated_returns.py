"""When people come back: as only an oracle knows it, and as their habit tells.

A benchmark of an idea, not of the product: would a suspend come too soon less often if
the policy knew how long each person usually stays away? ``Expecting`` is the real
policy of idleness with one more reason against it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchmarks.simulated_people import SOON
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.policy.decide import deny
from jupyterhub_gpu_reclaim.policy.idle import idle_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.simulated_people import Pauses
    from jupyterhub_gpu_reclaim.common.models import Decision, SessionKey
    from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot
    from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy

#: Past pauses that a habit is made of, at least.
ENOUGH = 3


def by_oracle(pauses: Pauses, key: SessionKey, idle: float, now: float) -> bool:
    """Whether its user will be back soon."""
    del idle
    return pauses.back_at.get(key, math.inf) - now < SOON


def by_habit(
    pauses: Pauses, key: SessionKey, idle: float, now: float, share: float = 0.5
) -> bool:
    """Whether more than a share of its user's pauses as long as this ended soon."""
    del now
    as_long = [pause for pause in pauses.of.get(key, ()) if pause > idle]
    soon = [pause for pause in as_long if pause < idle + SOON]
    return len(as_long) >= ENOUGH and len(soon) > share * len(as_long)


class Expecting:
    """Whoever is expected back soon is not suspended yet.

    Args:
        idle: the real policy, whose answer comes first.
        pauses: what is known of people.
        expected: whether somebody is.
    """

    def __init__(
        self,
        idle: IdlePolicy,
        pauses: Pauses,
        expected: Callable[[Pauses, SessionKey, float, float], bool],
    ) -> None:
        self._idle = idle
        self._pauses = pauses
        self._expected = expected

    def reasons(self, snapshot: SessionSnapshot, now: float) -> list[Decision]:
        """The real policy's, or that its user is expected."""
        found = self._idle.reasons(snapshot, now)
        idle = idle_for(snapshot, now)
        if found[0].reclaim and self._expected(self._pauses, snapshot.key, idle, now):
            return [deny(Reason.KEPT, now + SOON, until="soon", by="habit")]
        return found

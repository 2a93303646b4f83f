"""Decides whether a session naps: its GPU memory is moved out while it runs on.

A nap costs its user seconds, not minutes, and no connection; so it may begin much
earlier than a suspend. The signs of use and work, and the guards, are those of a
suspend. A napping session stays idle, and is suspended when that is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.common.traits import Seconds
from jupyterhub_gpu_reclaim.policy.decide import Decider, allow, deny
from jupyterhub_gpu_reclaim.policy.idle import idle_for

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Decision, SessionPolicy
    from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot
    from jupyterhub_gpu_reclaim.policy.guards import Guards
    from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy


#: Seconds of idleness after which sessions nap that share their GPU.
SHARED_NAP_AFTER = 180.0


class NapPolicy(Configurable):
    """``seats``: how many sessions share one GPU."""

    nap_after = Seconds(
        None,
        allow_none=True,
        help="""Seconds without use and without work after which a session naps.

        Its GPU memory is moved into the machine's memory, which must be free there; the
        session runs on, and what somebody sends to it brings the memory back by itself,
        in seconds, where the card has room. Shorter gives GPU memory to others sooner;
        longer spares people in a pause the seconds of a wake. What counts as use and as
        work, Keep and all guards are those of ``IdlePolicy`` and ``Guards``. Less than
        ``IdlePolicy.idle_after`` makes sense. None: 180 where sessions share GPUs
        (``ReclaimService.seats_per_gpu``), else 0, since a GPU that one session has for
        itself is of no use to others meanwhile. 0: no session naps by itself. Example:
        180.
        """,
    ).tag(config=True)

    room_after = Seconds(
        60.0,
        help="""Seconds of idleness, and of being awake, after which it naps for others.

        Where a session wakes and its card is full, others on that card that have been
        idle, and awake, for so long are put to nap at once: as few as are enough, the
        longest idle with the most memory first. None that is in use or at work, none
        that a guard holds, and none twice within ``Guards.cool_down``. Shorter makes
        a waking session wait less; longer spares people in a pause, and keeps two
        sessions from taking the memory from each other in turns. Only where sessions
        nap (``nap_after``). 0: none naps for others. Example: 30.
        """,
    ).tag(config=True)

    def __init__(
        self, idle: IdlePolicy, guards: Guards, seats: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._idle = idle
        self._guards = guards
        self._seats = seats
        self._decide = Decider(guards.denials, [self])

    def __call__(self, snapshot: SessionSnapshot, now: float) -> list[Decision]:
        return self._decide(snapshot, now)

    @property
    def usually_after(self) -> float:
        """In seconds, for a session without a rule of its own."""
        set_to: float | None = self.nap_after
        return (
            (SHARED_NAP_AFTER if self._seats > 1 else 0.0) if set_to is None else set_to
        )

    def after(self, terms: SessionPolicy) -> float:
        """Seconds of idleness after which a session naps; 0: never by itself."""
        return self.usually_after if terms.nap_after is None else terms.nap_after

    def reasons(self, snapshot: SessionSnapshot, now: float) -> list[Decision]:
        limit, rule = self.after(snapshot.terms), snapshot.terms.rule("nap_after")
        if limit == 0:
            return [deny(Reason.NAP_OFF, rule=rule)]
        against = self._reasons_against(snapshot, now, limit, rule)
        idle, limits = duration(idle_for(snapshot, now)), duration(limit) + rule
        return against or [allow(Reason.NAP_IDLE, now, idle=idle, nap_after=limits)]

    def _reasons_against(
        self, snapshot: SessionSnapshot, now: float, limit: float, rule: str = ""
    ) -> list[Decision]:
        against = self._idle.against(snapshot, now, limit, rule)
        if snapshot.usage is not None and snapshot.usage.gpu_memory == 0:
            against = [deny(Reason.GPU_UNUSED), *against]
        since = snapshot.since
        if since is not None and now - since < limit:
            # Whatever woke it need not have been use: else it would nap at once.
            awake, limits = duration(now - since), duration(limit) + rule
            at = since + limit
            against += [deny(Reason.NAP_WOKEN, at, awake=awake, nap_after=limits)]
        return against

    def for_room(self, snapshot: SessionSnapshot, now: float) -> list[Decision]:
        """As a call, where another session on its card wakes."""
        denials = self._guards.denials(snapshot, now)
        denials += self._guards.made_room(snapshot, now)
        if self.after(snapshot.terms) == 0:
            rule = snapshot.terms.rule("nap_after")
            denials.append(deny(Reason.NAP_OFF, rule=rule))
        elif self.room_after == 0:
            denials.append(deny(Reason.NAP_ROOM_OFF))
        else:
            denials += self._reasons_against(snapshot, now, self.room_after)
        idle = duration(idle_for(snapshot, now))
        return denials or [allow(Reason.NAP_ROOM, now, idle=idle)]

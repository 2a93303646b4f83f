"""Pressure: sessions go earlier while others wait for a GPU, and only then.

``PressurePolicy`` is one more policy of ``decide``: it applies to a selected session,
and asks for its suspend if that is idle by the usual reasons, for a shorter time.
``choose_to_go`` selects, once per tick, from all sessions and the GPU queue: only
as many as are needed, the longest idle with the most GPU memory first. Both are pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.common.traits import Seconds
from jupyterhub_gpu_reclaim.policy.decide import allow, deny
from jupyterhub_gpu_reclaim.policy.idle import idle_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jupyterhub_gpu_reclaim.common.models import Decision, SessionKey
    from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot
    from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy


class Want(Value, frozen=True, kw_only=True):
    """A waiting session's need, beyond everything that is being freed."""

    key: SessionKey
    gpus: int = 1
    gpu: str = ""  #: model needed; empty: any, or not known


class PressurePolicy(Configurable):
    pressure_idle_after = Seconds(
        0.0,
        help="""Seconds of idleness that are enough while somebody waits for a GPU.

        Only while no GPU is free for somebody who starts or resumes, and only as many
        sessions as are needed; the longest idle with the most GPU memory go first.
        What counts as use and as work, warnings, Keep and all guards are those of
        ``IdlePolicy`` and ``Guards``. Shorter lets others wait less; longer spares
        people in a pause. With ``IdlePolicy.idle_after = 0`` sessions go under pressure
        only. 0: waiting changes nothing. Example: 300.
        """,
    ).tag(config=True)

    def __init__(self, idle: IdlePolicy, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._idle = idle

    def reasons(self, snapshot: SessionSnapshot, now: float) -> list[Decision]:
        limit = self.pressure_idle_after
        if not limit or not snapshot.wanted:
            return [deny(Reason.NOBODY_WAITS)]
        against = self._idle.against(snapshot, now, limit)
        against += self._idle.connected(snapshot, now)
        against += self._idle.jobs_due(snapshot, now)
        idle, count = duration(idle_for(snapshot, now)), snapshot.wanted
        return against or [allow(Reason.PRESSURE, now, idle=idle, count=count)]


def choose_to_go(
    decide: Callable[[SessionSnapshot, float], Sequence[Decision]],
    snapshots: Iterable[SessionSnapshot],
    wants: Sequence[Want],
    now: float,
) -> dict[SessionKey, SessionKey]:
    """Those that go, and for which; ``wants`` are in the order of the queue."""
    # Those selected before (``wanted``) come first, so that a warning stays until its
    # end. Each is judged as if it were selected: what forbids its suspend forbids that.

    def may_go(snapshot: SessionSnapshot) -> bool:
        if not (snapshot.phase.live and snapshot.gpus and snapshot.usage is not None):
            return False
        wanted = msgspec.structs.replace(snapshot, wanted=len(wants))
        return decide(wanted, now)[0].reclaim

    if not wants:
        return {}
    able = list(filter(may_go, snapshots))
    able.sort(key=lambda each: _sort_key(each, now))
    chosen: dict[SessionKey, SessionKey] = {}
    for want in wants:
        lacking = want.gpus
        for each in able:
            if lacking <= 0:
                break
            if each.key not in {*chosen, want.key} and _has_wanted_gpu(each, want):
                chosen[each.key] = want.key
                lacking -= len(each.gpus)
    return chosen


def _has_wanted_gpu(snapshot: SessionSnapshot, want: Want) -> bool:
    # An unknown one may do.
    names = {gpu.name for gpu in snapshot.gpus}
    return not want.gpu or not names or want.gpu in names


def _sort_key(
    snapshot: SessionSnapshot, now: float
) -> tuple[bool, float, int, SessionKey]:
    """Longest idle times most GPU memory first, then the cheapest restore."""
    usage = snapshot.usage
    # One that naps in a pod holds a GPU without using memory of it.
    held = (usage and usage.gpu_memory) or sum(g.memory or 0 for g in snapshot.gpus)
    to_restore = held + ((usage and usage.memory) or 0)
    score = -idle_for(snapshot, now) * held
    return (not snapshot.wanted, score, to_restore, snapshot.key)

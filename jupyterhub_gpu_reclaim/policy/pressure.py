"""Pressure: sessions go earlier while others wait for a GPU, and only then.

``PressurePolicy`` is one more policy of ``decide``: it applies to a selected session,
and
asks for its suspend if that is idle by the usual reasons, for a shorter time.
``Chooser``
selects, once per tick, from all sessions and the GPU queue: only as many as are needed,
the longest idle with the most GPU memory first. Both are pure and suspend nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common.models import Phase, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.common.traits import Seconds
from jupyterhub_gpu_reclaim.policy.base import claim, veto
from jupyterhub_gpu_reclaim.policy.idle import idle_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jupyterhub_gpu_reclaim.common.models import SessionKey, SessionView, Verdict
    from jupyterhub_gpu_reclaim.policy.base import SessionSnapshot
    from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy

_LIVE = {Phase.RUNNING, Phase.WARNED}


class Want(Value, frozen=True, kw_only=True):
    """What a waiting session still lacks after everything that is being freed."""

    key: SessionKey
    gpus: int = 1
    gpu: str = ""  #: model that it has to be; empty: any, or not known


class PressurePolicy(Configurable):
    """Suspends what is idle for less than ``idle_after`` while others wait.

    Args:
        idle: says why a session is not idle.
        **kwargs: of traitlets.
    """

    pressure_idle_after = Seconds(
        0.0,
        help="""Seconds of idleness that are enough while somebody waits for a GPU.

        Only while no GPU is free for somebody who starts or resumes, and only as many
        sessions as are needed; the longest idle with the most GPU memory go first.
        What counts as use and as work, warnings, Keep and all guards are those of
        ``IdlePolicy`` and ``Guards``. Shorter lets others wait less; longer spares
        people in a pause. At most ``IdlePolicy.idle_after`` makes sense; with
        ``IdlePolicy.idle_after = 0`` sessions go under pressure only. 0: waiting
        changes nothing, so that nobody goes earlier than ``idle_after`` promises.
        Example: 300.
        """,
    ).tag(config=True)

    def __init__(self, idle: IdlePolicy, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._idle = idle

    def reasons(self, snapshot: SessionSnapshot, now: float) -> list[Verdict]:
        """Why it stays, or the one that says it goes, and for whom."""
        limit = self.pressure_idle_after
        if not limit or not snapshot.wanted:
            return [veto(Reason.NOBODY_WAITS)]
        against = self._idle.against(snapshot, now, limit)
        if against:
            return against
        idle = duration(idle_for(snapshot, now))
        return [claim(Reason.PRESSURE, now, idle=idle, count=snapshot.wanted)]


class Chooser:
    """Selects sessions to go for those that wait.

    Args:
        decide: the one decision about a session. A session is judged as if it were
            selected, so that whatever forbids its suspend forbids its selection.
    """

    def __init__(
        self, decide: Callable[[SessionView, float], Sequence[Verdict]]
    ) -> None:
        self._decide = decide

    def __call__(
        self, views: Iterable[SessionView], wants: Sequence[Want], now: float
    ) -> dict[SessionKey, SessionKey]:
        """Which sessions go, and for whom; empty if none is needed or none may go.

        Args:
            views: all sessions. Those that were selected before (fact ``wanted``) come
                first, so that a warning stands until its end.
            wants: what is lacking, in the order of the queue.
            now: seconds since the epoch.
        """
        if not wants:
            return {}
        able = [v for v in views if _holds(v) and self._may_go(v, len(wants), now)]
        able.sort(key=lambda view: _order(view, now))
        chosen: dict[SessionKey, SessionKey] = {}
        for want in wants:
            lacking = want.gpus
            for view in able:
                if lacking <= 0:
                    break
                if (
                    view.key not in chosen
                    and view.key != want.key
                    and _fits(view, want)
                ):
                    chosen[view.key] = want.key
                    lacking -= len(view.gpus)
        return chosen

    def _may_go(self, view: SessionView, count: int, now: float) -> bool:
        facts = {**view.facts, "wanted": count}
        verdicts = self._decide(msgspec.structs.replace(view, facts=facts), now)
        return bool(verdicts) and verdicts[0].reclaim


def _holds(view: SessionView) -> bool:
    return view.phase in _LIVE and bool(view.gpus) and view.usage is not None


def _fits(view: SessionView, want: Want) -> bool:
    """Whether its GPU would do; an unknown one may."""
    names = {gpu.name for gpu in view.gpus}
    return not want.gpu or not names or want.gpu in names


def _order(view: SessionView, now: float) -> tuple[bool, float, int, SessionKey]:
    """Longest idle times most GPU memory first; the cheapest restore breaks ties."""
    usage = view.usage
    assert usage is not None  # checked by _holds
    idle = now - usage.last_active if usage.last_active is not None else 0.0
    held = usage.gpu_memory or 0
    to_restore = held + (usage.memory or 0)
    return (not view.facts.get("wanted"), -idle * held, to_restore, view.key)

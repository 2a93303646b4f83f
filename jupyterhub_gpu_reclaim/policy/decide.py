"""The decision about a session, from all guards and policies, with every reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import field

from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    GpuSample,
    Phase,
    SessionKey,
    SessionPolicy,
    Usage,
    Value,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.policy import probe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Decider:
    """Asks guards, policies, then the probe, whose missing answer is a denial."""

    #: what forbids it now, the most telling first: ``Guards.denials``
    forbids: Callable[[SessionSnapshot, float], list[Decision]]
    policies: Sequence[Policy]
    probed: bool = False

    def __call__(self, snapshot: SessionSnapshot, now: float) -> list[Decision]:
        """Every reason, the deciding one first; never empty.

        If all that forbid it end at known times, the deciding one's ``at`` is the last.
        """
        denials = self.forbids(snapshot, now)
        answers = [policy.reasons(snapshot, now) for policy in self.policies]
        wanted = next((each for each in answers if each[0].reclaim), None)
        if not denials and wanted is not None and self.probed:
            said, until = probe.against(snapshot.probed, now)
            denials = [deny(Reason.PROBE, until, said=said)] if said else []
        if not denials and wanted is not None:
            return wanted
        against = denials + (answers[0] if wanted is None else [])
        ends = [verdict.at for verdict in against if verdict.at is not None]
        at = max(ends) if len(ends) == len(against) else None
        return [msgspec.structs.replace(against[0], at=at), *against[1:]]


class SessionSnapshot(Value, frozen=True, kw_only=True):
    """A session at one moment, as policies see it; ``None``: unknown."""

    # Nothing in it may require a look at all other sessions: it is made for each, every
    # few seconds. Rules about several belong to ``controlplane/decide/together.py``.

    key: SessionKey
    phase: Phase
    since: float | None = None  #: when its phase began
    usage: Usage | None = None
    started_at: float | None = None
    resumed_at: float | None = None
    kept_until: float | None = None
    kept_by: str = ""
    opted_out_by: str = ""
    backoff_until: float | None = None
    failure: Failure | None = None
    #: GPU use of the session, as far as known.
    gpus: list[GpuSample] = field(default_factory=list)
    #: What the administrator's probe said last, if there is one.
    probed: probe.Probed | None = None
    #: Settings of the rules that apply to the session.
    terms: SessionPolicy = SessionPolicy()
    waking: bool = False  #: being woken, and waiting for memory of its GPU
    made_room_at: float | None = None  #: when it last napped for another session
    #: Number of sessions that wait for a GPU, if this one was selected to go.
    wanted: int = 0


class Policy(Protocol):
    def reasons(self, snapshot: SessionSnapshot, now: float) -> list[Decision]:
        """Either one verdict, ``reclaim``, or every reason against it; not empty."""


def allow(reason: Reason, now: float, **facts: Any) -> Decision:
    return Decision(
        reclaim=True, code=reason.value, message=reason.sentence(**facts), at=now
    )


def deny(reason: Reason, at: float | None = None, **facts: Any) -> Decision:
    """``at``: when it may be over, if that can be known."""
    return Decision(
        reclaim=False, code=reason.value, message=reason.sentence(**facts), at=at
    )

"""A session and its checkpoints, as the journal keeps them; its life as one table.

Plain frozen values, never a token; pure. A step that is not in the table is refused:
``sessions.py`` asks it before it writes a phase. Law 1 (``docs/explanation/laws.md``)
is enforced here: the phases in which a session's programs are ended (``RELEASING``,
``SUSPENDED``) can only be entered with a committed checkpoint.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import (
    Aside,
    AuditLine,
    CheckpointInfo,
    Failure,
    GoneOn,
    Phase,
    SessionKey,
    Value,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable


class Intent(StrEnum):
    NONE = ""
    SUSPEND = "suspend"
    RESUME = "resume"
    NAP = "nap"
    WAKE = "wake"
    SAVE = "save"


class SessionRow(Value, frozen=True, kw_only=True):
    """Durable state of a session. Times are seconds since the epoch."""

    key: SessionKey
    phase: Phase = Phase.STOPPED
    since: float = 0.0
    session: str = ""  #: its id, from its fresh start on; empty: not known
    #: account of the Hub that started it; empty: the next one of its user's name that
    #: does
    account: str = ""
    claimed: bool = False  #: whether another account of its user's name wants it
    incarnation: str = ""
    #: the highest of a checkpoint that was taken into account: term and generation
    stamp: tuple[int, int] = (0, 0)
    #: committed checkpoint, which a start of this session restores; while RUNNING it is
    #: the one that the session came from, kept for the time of grace, or its save point
    checkpoint: str = ""
    attempt: str = ""  #: id of the capture under way, not (yet) committed
    intent: Intent = Intent.NONE
    intent_by: str = ""
    save_name: str = ""  #: name of the save point that is wanted
    failure: Failure | None = None
    failures: int = 0  #: in a row
    backoff_until: float | None = None
    kept_until: float | None = None
    kept_by: str = ""
    opted_out_by: str = ""
    placed: bool = False  #: whether an init holds the place of the resume under way
    node: str = ""  #: where it was placed; "" is the Hub's own machine
    started_at: float | None = None
    resumed_at: float | None = None
    #: time of the last request to stop it that the Hub has not answered for sure
    stop_asked: float | None = None
    #: checkpoint to bring back as soon as the session is suspended
    bring_back: str = ""
    #: the audit's line on its last suspend, or its end that went back to what is saved
    cause: AuditLine | None = None
    made_room_at: float | None = None  #: when it last napped for another session
    #: ids of the sessions whose tabs may ask and order nothing any more
    tabs_revoked: frozenset[str] = frozenset()

    def tells(self, reason: Reason) -> bool:
        return self.failure is not None and self.failure.code == reason.value

    @property
    def asks(self) -> bool:
        """Whether nothing but a person's word, if that, makes another try go well."""
        return self.failure is not None and not self.failure.retryable


class Keeping(StrEnum):
    CURRENT = "current"  #: the session is suspended in it
    #: the session came back from it, which is kept for a while, or was saved as it
    #: while it ran
    SUPERSEDED = "superseded"
    ASIDE = "aside"  #: the user started fresh; kept for days
    WANTED = "wanted"  #: to be brought back as soon as the session is suspended
    TO_DELETE = "doomed"  #: to be deleted as soon as the agent answers


class CheckpointRow(Value, frozen=True, kw_only=True):
    """A committed checkpoint as it was last seen, and how long it is kept."""

    info: CheckpointInfo  #: ``mark`` there is the last word, which the store is told
    # Computed (``retention.py``), but for an order to delete it, or to hide it:
    keeping: Keeping = Keeping.ASIDE
    expires: float | None = None  #: None: not by itself

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def key(self) -> SessionKey:
        return self.info.key

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def stamp(self) -> tuple[int, int]:
        return self.info.stamp

    def is_of(self, incarnation: str) -> bool:
        return self.info.incarnation == incarnation != ""

    def kept(self, keeping: Keeping, expires: float | None = None) -> CheckpointRow:
        return msgspec.structs.replace(self, keeping=keeping, expires=expires)

    def said(self, **words: Aside | GoneOn | str | None) -> CheckpointRow:
        info = msgspec.structs.replace(self.info, **words)
        return msgspec.structs.replace(self, info=info)

    def set_aside(self, until: float | None) -> CheckpointRow:
        return self.said(aside=Aside(until=until), gone_on=None)


def failure_of(reason: Reason, **facts: Any) -> Failure:
    return codec.failure_of(Refused(reason, **facts))


class SessionEvent(StrEnum):
    """Events in a session's life; the value completes "A session cannot …"."""

    NAPS = "nap"  #: its GPU memory was moved out, by whoever's order
    WAKES = "wake"  #: its memory was moved back, by an order or by the session's use
    SUSPEND = "be suspended"
    CAPTURE_FAILED = "be rolled back"
    COMMITTED = "be called saved"
    THAWED = "be thawed"
    RELEASED = "be called released"
    RESTORE = "be brought back"
    RESTORED = "be called restored"
    RESTORE_FAILED = "fail to come back"
    STARTED = "be started"
    STOPPED = "be stopped"
    VANISHED = "vanish"  #: its programs ended by themselves
    LOST = "be lost after its return"  #: vanished while its checkpoint is still kept
    DISCARDED = "be discarded"
    PUT_ASIDE = "be started fresh"
    FOUND_RUNNING = "be found running"
    FOUND_SAVED = "be found saved"
    BROUGHT_BACK = "go back to another saved state"


#: A session that runs, with no operation under way; its GPU programs may nap.
LIVE = frozenset({Phase.RUNNING, Phase.NAPPING})
#: Without processes, and no operation is under way either.
RESTS = frozenset(phase for phase in Phase if phase.rests)
#: Phases in which the programs are, or are about to be, ended: they need a checkpoint.
SAVED = frozenset({Phase.RELEASING, Phase.SUSPENDED})
#: Phases in which the programs are, or may be, gone: only with a checkpoint.
_NEEDS_CHECKPOINT = frozenset({Phase.RELEASING, Phase.SUSPENDED, Phase.RESUMING})

_STEPS: dict[SessionEvent, tuple[Iterable[Phase], Phase]] = {
    # its GPU memory moved out and back: it runs all the time. Beside programs that nap
    # others may begin to use a GPU; a wake may be noticed before its order's end.
    SessionEvent.NAPS: ({Phase.RUNNING, Phase.NAPPING}, Phase.NAPPING),
    SessionEvent.WAKES: ({Phase.RUNNING, Phase.NAPPING}, Phase.RUNNING),
    # capture, commit, release
    SessionEvent.SUSPEND: (LIVE, Phase.SUSPENDING),
    SessionEvent.CAPTURE_FAILED: ({Phase.SUSPENDING}, Phase.RUNNING),
    SessionEvent.COMMITTED: (Phase, Phase.RELEASING),
    SessionEvent.THAWED: (SAVED, Phase.RUNNING),
    SessionEvent.RELEASED: ({Phase.RELEASING}, Phase.SUSPENDED),
    # place, restore; a second start of the same session replaces the first
    SessionEvent.RESTORE: ({Phase.SUSPENDED, Phase.RESUMING}, Phase.RESUMING),
    SessionEvent.RESTORED: ({Phase.RESUMING}, Phase.RUNNING),
    SessionEvent.RESTORE_FAILED: ({Phase.RESUMING}, Phase.SUSPENDED),
    # cold starts and real stops
    SessionEvent.STARTED: (LIVE | {Phase.STOPPED}, Phase.RUNNING),
    SessionEvent.STOPPED: (LIVE | {Phase.SUSPENDING}, Phase.STOPPED),
    SessionEvent.VANISHED: (LIVE | {Phase.SUSPENDING}, Phase.STOPPED),
    SessionEvent.LOST: (LIVE | {Phase.SUSPENDING}, Phase.SUSPENDED),
    # the user's choice
    SessionEvent.DISCARDED: ({Phase.SUSPENDED}, Phase.STOPPED),
    SessionEvent.PUT_ASIDE: ({Phase.SUSPENDED}, Phase.STOPPED),
    SessionEvent.BROUGHT_BACK: (RESTS, Phase.SUSPENDED),
    # what nobody had noted
    SessionEvent.FOUND_RUNNING: (LIVE | RESTS | {Phase.RESUMING}, Phase.RUNNING),
    SessionEvent.FOUND_SAVED: (LIVE | RESTS | {Phase.SUSPENDING}, Phase.SUSPENDED),
}
TABLE: dict[tuple[Phase, SessionEvent], Phase] = {
    **{
        (phase, event): after
        for event, (before, after) in _STEPS.items()
        for phase in before
    },
    # What is saved stays so.
    (Phase.RESUMING, SessionEvent.STOPPED): Phase.SUSPENDED,
    (Phase.SUSPENDED, SessionEvent.STOPPED): Phase.SUSPENDED,
}


def advance(phase: Phase, event: SessionEvent, *, saved: bool) -> Phase:
    """Return the phase to which that event leads.

    Raises:
        Refused: ``wrong_phase``; ``not_captured``: it ends programs, and nothing is
            saved.
    """
    following = TABLE.get((phase, event))
    if following is None:
        raise Refused(Reason.WRONG_PHASE, phase=phase.value, action=event.value)
    if following in _NEEDS_CHECKPOINT and not saved:
        raise Refused(Reason.NOT_CAPTURED, detail=f"{phase} {event.name}")
    return following


#: Columns that only one phase has; they are empty in every other one.
_OF_ONE_PHASE: dict[Phase, dict[str, Any]] = {
    Phase.SUSPENDING: {"attempt": ""},
    Phase.RESUMING: {"placed": False},
}
#: Events by which an order has begun, failed, or become void.
_ANSWERS = frozenset(
    {
        SessionEvent.SUSPEND,
        SessionEvent.CAPTURE_FAILED,
        SessionEvent.RESTORE,
        SessionEvent.RESTORE_FAILED,
        SessionEvent.FOUND_SAVED,
        SessionEvent.LOST,
    }
)
#: Events after which no other checkpoint is to be brought back.
_CALLS_OFF = frozenset(
    {
        SessionEvent.CAPTURE_FAILED,
        SessionEvent.THAWED,
        SessionEvent.FOUND_SAVED,
        SessionEvent.BROUGHT_BACK,
    }
)
#: Columns of a row without an order.
NO_ORDER: dict[str, Any] = {"intent": Intent.NONE, "intent_by": "", "save_name": ""}
_OF_PROCESSES: dict[str, Any] = {
    **NO_ORDER,
    "failures": 0,
    "backoff_until": None,
    "stop_asked": None,
    "placed": False,
    "node": "",  # the next one may be elsewhere
}
_OF_A_SESSION: dict[str, Any] = {"kept_until": None, "kept_by": ""}


def ended(event: SessionEvent, before: SessionRow, after: SessionRow) -> dict[str, Any]:
    void: dict[str, Any] = _columns_ended(event, before, after)
    for phase, columns in _OF_ONE_PHASE.items():
        if after.phase is not phase:
            void |= columns
    if event in _ANSWERS:
        void |= NO_ORDER
    if event in _CALLS_OFF:
        void["bring_back"] = ""
    return void


def is_needless(checkpoint: CheckpointRow, session: SessionRow) -> bool:
    """Whether a person may delete it: nothing that is under way needs it."""
    match checkpoint.keeping:
        case Keeping.ASIDE:
            return True
        case Keeping.SUPERSEDED:
            return session.phase in LIVE | RESTS
        case Keeping.CURRENT:
            return session.phase is Phase.SUSPENDED
    return False


def _columns_ended(
    event: SessionEvent, before: SessionRow, after: SessionRow
) -> dict[str, Any]:
    stopped = after.phase is Phase.STOPPED
    if after.incarnation == before.incarnation and not stopped:
        return {**NO_ORDER} if _is_done(after) else {}
    same = after.session == before.session != ""
    came_from = bool(after.checkpoint) and after.checkpoint == before.checkpoint
    by_its_user = event is SessionEvent.BROUGHT_BACK
    if (same or came_from or by_its_user) and not stopped:
        return {**_OF_PROCESSES}
    return {**_OF_PROCESSES, **_OF_A_SESSION}


def _is_done(row: SessionRow) -> bool:
    """Whether the order is done already, or cannot be done any more."""
    if row.intent is Intent.RESUME:
        return row.phase in LIVE
    if row.intent is Intent.NAP:
        return row.phase is not Phase.RUNNING
    if row.intent is Intent.WAKE:
        return row.phase is not Phase.NAPPING
    return row.phase in {Phase.SUSPENDED, Phase.RESUMING}

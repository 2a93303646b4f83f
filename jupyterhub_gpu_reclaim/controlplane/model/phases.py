"""The life of a session as one table: phase and event to next phase.

Pure; a step that is not in the table is refused. ``sessions/registry.py`` asks it
before it writes a phase to the journal.

Law 1 (``docs/explanation/laws.md``) is enforced here: the phases in which a session's
programs are ended (``RELEASING``, ``SUSPENDED``) can only be entered with a committed
checkpoint.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent, Keeping

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow, SessionRow


class SessionEvent(StrEnum):
    """Events in a session's life; the value completes "A session cannot …"."""

    WARNED = "be warned"
    STAYS = "be left alone"  #: activity, or a "keep", after a warning
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
    FOUND_CAPTURED = "be found captured"
    FOUND_SAVED = "be found saved"
    BROUGHT_BACK = "go back to another saved state"


#: A session that runs, with no operation under way; its GPU programs may nap.
LIVE = frozenset(phase for phase in Phase if phase.live)
#: Without processes, and no operation is under way either.
RESTS = frozenset(phase for phase in Phase if phase.rests)
#: Phases in which the programs are, or are about to be, ended: they need a checkpoint.
SAVED = frozenset({Phase.RELEASING, Phase.SUSPENDED})
#: Phases in which the programs are, or may be, gone: only with a checkpoint.
_NEEDS_CHECKPOINT = frozenset({Phase.RELEASING, Phase.SUSPENDED, Phase.RESUMING})

TABLE: dict[tuple[Phase, SessionEvent], Phase] = {
    # idle, pressure, button
    **{
        (phase, SessionEvent.WARNED): Phase.WARNED
        for phase in (Phase.RUNNING, Phase.NAPPING)
    },
    (Phase.WARNED, SessionEvent.STAYS): Phase.RUNNING,
    # its GPU memory moved out and back: it runs all the time
    (Phase.RUNNING, SessionEvent.NAPS): Phase.NAPPING,
    (Phase.NAPPING, SessionEvent.WAKES): Phase.RUNNING,
    **{
        (Phase.WARNED, event): Phase.WARNED
        for event in (SessionEvent.NAPS, SessionEvent.WAKES)
    },
    **{(phase, SessionEvent.SUSPEND): Phase.SUSPENDING for phase in LIVE},
    # capture, commit, release
    (Phase.SUSPENDING, SessionEvent.CAPTURE_FAILED): Phase.RUNNING,
    (Phase.SUSPENDING, SessionEvent.COMMITTED): Phase.RELEASING,
    **{(phase, SessionEvent.THAWED): Phase.RUNNING for phase in SAVED},
    (Phase.RELEASING, SessionEvent.RELEASED): Phase.SUSPENDED,
    # place, restore; a second start of the same session replaces the first
    (Phase.SUSPENDED, SessionEvent.RESTORE): Phase.RESUMING,
    (Phase.RESUMING, SessionEvent.RESTORE): Phase.RESUMING,
    (Phase.RESUMING, SessionEvent.RESTORED): Phase.RUNNING,
    (Phase.RESUMING, SessionEvent.RESTORE_FAILED): Phase.SUSPENDED,
    # cold starts and real stops
    **{
        (phase, SessionEvent.STARTED): Phase.RUNNING for phase in (*LIVE, Phase.STOPPED)
    },
    **{
        (phase, event): Phase.STOPPED
        for phase in (*LIVE, Phase.SUSPENDING)
        for event in (SessionEvent.STOPPED, SessionEvent.VANISHED)
    },
    **{
        (phase, SessionEvent.LOST): Phase.SUSPENDED
        for phase in (*LIVE, Phase.SUSPENDING)
    },
    (Phase.RESUMING, SessionEvent.STOPPED): Phase.SUSPENDED,
    (Phase.SUSPENDED, SessionEvent.STOPPED): Phase.SUSPENDED,
    # the user's choice
    (Phase.SUSPENDED, SessionEvent.DISCARDED): Phase.STOPPED,
    (Phase.SUSPENDED, SessionEvent.PUT_ASIDE): Phase.STOPPED,
    (Phase.SUSPENDED, SessionEvent.BROUGHT_BACK): Phase.SUSPENDED,
    (Phase.STOPPED, SessionEvent.BROUGHT_BACK): Phase.SUSPENDED,
    # what a reconciliation finds
    **{
        (phase, SessionEvent.FOUND_RUNNING): Phase.RUNNING
        for phase in (*LIVE, Phase.STOPPED, Phase.SUSPENDED, Phase.RESUMING)
    },
    **{
        (phase, SessionEvent.FOUND_CAPTURED): Phase.RELEASING
        for phase in Phase
        if phase is not Phase.SUSPENDING
    },
    **{
        (phase, SessionEvent.FOUND_SAVED): Phase.SUSPENDED
        for phase in (*LIVE, Phase.SUSPENDING, Phase.STOPPED, Phase.SUSPENDED)
    },
}


def advance(phase: Phase, event: SessionEvent, *, saved: bool) -> Phase:
    """Return the phase to which that event leads.

    Args:
        phase: where the session is now.
        event: the event.
        saved: whether a committed checkpoint of the session is known, now that this
            has happened.

    Raises:
        Refused: ``wrong_phase``: the table has no such step; ``not_captured``: the
            step ends programs, and nothing is saved.
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
    Phase.RESUMING: {"placed": False, "waiting_since": None},
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
    """Return the columns that end, each with its empty value.

    Args:
        event: what has happened.
        before: the row as it was.
        after: with its new phase, incarnation and checkpoint.
    """
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
    """Return the columns that end with the session, its processes, or the order."""
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
        return row.phase not in {Phase.RUNNING, Phase.WARNED}
    if row.intent is Intent.WAKE:
        return row.phase not in {Phase.NAPPING, Phase.WARNED}
    return row.phase in {Phase.SUSPENDED, Phase.RESUMING}

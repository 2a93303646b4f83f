"""The life of a session as one table: phase and event to next phase and what to do.

Pure; a step that is not in the table is refused. ``sessions/registry.py`` asks it
before
it writes a phase to the journal.

Law 1 (``docs/explanation/laws.md``) is enforced here: the phases in which a session's
programs are ended (``RELEASING``, ``SUSPENDED``) can only be entered with a committed
checkpoint.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason


class Happened(StrEnum):
    """What can happen to a session; the value completes "A session cannot …"."""

    WARNED = "be warned"
    STAYS = "be left alone"  #: activity, or a "keep", after a warning
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


class Todo(StrEnum):
    """What the control plane does next for a session in its new phase."""

    NOTHING = "nothing"
    CAPTURE = "capture"
    RELEASE = "release"  #: ask the Hub for a stop, then end the tree
    RESTORE = "restore"


class Next(NamedTuple):
    """Where an event leads."""

    phase: Phase
    todo: Todo = Todo.NOTHING


#: A session that runs, with no operation under way.
LIVE = frozenset({Phase.RUNNING, Phase.WARNED})
#: A session whose programs are, or are about to be, ended: it needs its checkpoint.
SAVED = frozenset({Phase.RELEASING, Phase.SUSPENDED})
#: Phases in which the programs are, or may be, gone: only with a checkpoint.
_NEEDS_CHECKPOINT = frozenset({Phase.RELEASING, Phase.SUSPENDED, Phase.RESUMING})

_RUNNING = Next(Phase.RUNNING)
_STOPPED = Next(Phase.STOPPED)
_SUSPENDED = Next(Phase.SUSPENDED)
_RELEASING = Next(Phase.RELEASING, Todo.RELEASE)

TABLE: dict[tuple[Phase, Happened], Next] = {
    # idle, pressure, button
    (Phase.RUNNING, Happened.WARNED): Next(Phase.WARNED),
    (Phase.WARNED, Happened.STAYS): _RUNNING,
    **{
        (phase, Happened.SUSPEND): Next(Phase.SUSPENDING, Todo.CAPTURE)
        for phase in LIVE
    },
    # capture, commit, release
    (Phase.SUSPENDING, Happened.CAPTURE_FAILED): _RUNNING,
    (Phase.SUSPENDING, Happened.COMMITTED): _RELEASING,
    **{(phase, Happened.THAWED): _RUNNING for phase in SAVED},
    (Phase.RELEASING, Happened.RELEASED): _SUSPENDED,
    # place, restore; a second start of the same session replaces the first
    (Phase.SUSPENDED, Happened.RESTORE): Next(Phase.RESUMING, Todo.RESTORE),
    (Phase.RESUMING, Happened.RESTORE): Next(Phase.RESUMING, Todo.RESTORE),
    (Phase.RESUMING, Happened.RESTORED): _RUNNING,
    (Phase.RESUMING, Happened.RESTORE_FAILED): _SUSPENDED,
    # cold starts and real stops
    **{
        (phase, Happened.STARTED): _RUNNING
        for phase in (Phase.STOPPED, Phase.RUNNING, Phase.WARNED)
    },
    **{
        (phase, happened): _STOPPED
        for phase in (*LIVE, Phase.SUSPENDING)
        for happened in (Happened.STOPPED, Happened.VANISHED)
    },
    **{(phase, Happened.LOST): _SUSPENDED for phase in (*LIVE, Phase.SUSPENDING)},
    (Phase.RESUMING, Happened.STOPPED): _SUSPENDED,
    (Phase.SUSPENDED, Happened.STOPPED): _SUSPENDED,
    # the user's choice
    (Phase.SUSPENDED, Happened.DISCARDED): _STOPPED,
    (Phase.SUSPENDED, Happened.PUT_ASIDE): _STOPPED,
    (Phase.SUSPENDED, Happened.BROUGHT_BACK): _SUSPENDED,
    (Phase.STOPPED, Happened.BROUGHT_BACK): _SUSPENDED,
    # what a reconciliation finds
    **{
        (phase, Happened.FOUND_RUNNING): _RUNNING
        for phase in (*LIVE, Phase.STOPPED, Phase.SUSPENDED, Phase.RESUMING)
    },
    **{
        (phase, Happened.FOUND_CAPTURED): _RELEASING
        for phase in (*LIVE, Phase.STOPPED, Phase.SUSPENDED)
    },
    **{
        (phase, Happened.FOUND_SAVED): _SUSPENDED
        for phase in (*LIVE, Phase.SUSPENDING, Phase.STOPPED, Phase.SUSPENDED)
    },
}


def advance(phase: Phase, happened: Happened, *, saved: bool) -> Next:
    """Where that event leads a session of that phase.

    Args:
        phase: where the session is now.
        happened: what happened to it.
        saved: whether a committed checkpoint of the session is known, now that this
            has happened.

    Raises:
        Refused: ``wrong_phase``: the table has no such step; ``not_captured``: the
            step ends programs, and nothing is saved.
    """
    following = TABLE.get((phase, happened))
    if following is None:
        raise Refused(Reason.WRONG_PHASE, phase=phase.value, action=happened.value)
    if following.phase in _NEEDS_CHECKPOINT and not saved:
        raise Refused(Reason.NOT_CAPTURED, detail=f"{phase} {happened.name}")
    return following

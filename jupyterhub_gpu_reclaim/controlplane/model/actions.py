"""Actions: the next step for a session, or the answer to whoever asks about it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        Failure,
        Phase,
        Tree,
    )
    from jupyterhub_gpu_reclaim.common.reasons import Reason


class ActionKind(StrEnum):
    """Kinds of actions; a worker does them, or whoever was asked about the session."""

    NOTHING = "nothing"
    WAIT = "wait"  #: look again soon: something is under way
    READY = "ready"
    TAKE = "take what is so"
    NOTE = "note what is saved"
    ATTACH = "attach to the capture"
    CANCEL = "cancel"
    CALL_OFF = "call the order off"  #: it cannot be begun
    STOP_AT_HUB = "ask the Hub for a stop"
    RELEASE = "release"
    THAW = "thaw"
    RESTORE = "restore"
    GIVE_UP = "give the restore up"
    KILL = "kill"
    REPORT = "report"
    BRING_BACK = "bring another one back"
    MISSING = "take what is missing"
    # Answers to who asks:
    COLD = "start cold"
    RETURN = "bring it back"
    JOIN = "take up what runs"
    ASK = "ask its user"
    REFUSE = "refuse"
    END = "end it"
    SAVED = "it is saved"
    KEEP = "keep it"
    UNANSWERED = "a part must answer first"


class Action(NamedTuple):
    """An action on one tree or checkpoint."""

    kind: ActionKind
    tree: Tree | None = None
    saved: CheckpointInfo | None = None
    #: only if the same action has been due for ``orphan_grace``
    patient: bool = False
    failure: Failure | None = None  #: failure to tell with it
    phase: Phase | None = None  #: of ``TAKE``: what the session is now


NOTHING = Action(ActionKind.NOTHING)
WAIT = Action(ActionKind.WAIT)

#: Kinds that end a question.
ANSWERS = frozenset(
    {
        ActionKind.COLD,
        ActionKind.RETURN,
        ActionKind.JOIN,
        ActionKind.ASK,
        ActionKind.REFUSE,
        ActionKind.MISSING,
        ActionKind.END,
        ActionKind.SAVED,
        ActionKind.KEEP,
    }
)


def failure_of(reason: Reason, **facts: Any) -> Failure:
    """A reason as stored in a row."""
    return codec.failure_of(Refused(reason, **facts))

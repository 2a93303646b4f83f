"""Actions: the next step for a session, or the answer to the Hub's spawner."""

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
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow


class ActionKind(StrEnum):
    """Kinds of actions; a worker does them, or whoever was asked about the session."""

    NOTHING = "nothing"
    WAIT = "wait"  #: look again soon: something is under way
    READY = "ready"
    TAKE = "take what is so"
    FOLLOW = "follow what is under way"  #: the capture, or the restore, which it begins
    CALL_OFF = "call the order off"  #: it cannot be begun
    STOP_AT_HUB = "ask the Hub for a stop"
    RELEASE = "release"
    THAW = "thaw"  #: a capture under way is cancelled
    KILL = "kill"  #: a restore under way is given up
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
    kind: ActionKind
    tree: Tree | None = None
    saved: CheckpointInfo | None = None
    #: only if the same action has been due for ``orphan_grace``
    patient: bool = False
    failure: Failure | None = None  #: failure to tell with it
    phase: Phase | None = None  #: of ``TAKE``: what the session is now


class Want(StrEnum):
    START = "start"
    STOP = "stop"


class Asked(NamedTuple):
    want: Want
    #: the one about to begin (for a start), or to be ended (for a stop)
    incarnation: str
    checkpoint: str = ""  #: checkpoint that the Hub remembers
    stamp: tuple[int, int] = (0, 0)  #: stamp of that checkpoint; zeros: not known
    #: session that the Hub remembers there, or an incarnation of it; empty: none
    former: str = ""
    remembered: bool = False  #: whether the Hub remembers a session there
    kept: tuple[CheckpointRow, ...] = ()  #: the checkpoints that the journal has
    listed: bool = False  #: whether the journal knows what the store last had of it
    came_back: bool = False  #: whether the restore under way has ended well
    silence: Reason | None = None  #: why a part did not answer; None: all did


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
    return codec.failure_of(Refused(reason, **facts))

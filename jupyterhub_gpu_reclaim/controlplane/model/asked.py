"""What the Hub's spawner asks about a session, with what decides the answer."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.reasons import Reason
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow


class Want(StrEnum):
    """What somebody wants of a session, beside that it is as the journal says."""

    START = "start"
    STOP = "stop"


class Asked(NamedTuple):
    """One question."""

    want: Want
    #: of the start: the one that is about to begin; of the stop: the one to be ended
    incarnation: str
    checkpoint: str = ""  #: that the Hub remembers
    stamp: tuple[int, int] = (0, 0)  #: of that one; zeros: not known
    #: session that the Hub remembers there, or an incarnation of it; empty: none
    former: str = ""
    remembered: bool = False  #: whether the Hub remembers a session there
    kept: tuple[CheckpointRow, ...] = ()  #: what the journal has of it
    listed: bool = False  #: whether the journal knows what the store last had of it
    came_back: bool = False  #: whether the restore under way has ended well
    elsewhere: bool = False  #: whether that incarnation is there under another name
    silence: Reason | None = None  #: why a part did not answer; None: none was silent

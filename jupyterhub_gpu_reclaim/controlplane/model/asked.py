"""The question of the Hub's spawner about a session, with what decides the answer."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.reasons import Reason
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow


class Want(StrEnum):
    """The request: a start or a stop."""

    START = "start"
    STOP = "stop"


class Asked(NamedTuple):
    """A question of the spawner."""

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

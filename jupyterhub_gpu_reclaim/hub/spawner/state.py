"""The spawner's write-ahead pointer: what the Hub's database remembers of a session.

It goes through the spawners' ``get_state``/``load_state``. It never holds a token: the
Hub shows spawner state to everyone with ``admin:server_state``.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Any

import msgspec

from jupyterhub_gpu_reclaim.common import codec, decoders
from jupyterhub_gpu_reclaim.common.bounds import Moment
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import (
    Suspension,  # noqa: TC001 - msgspec reads it
)

_log = logging.getLogger(__name__)

#: Name of the pointer in ``Spawner.get_state()``.
KEY = "gpu_reclaim"


class PointerPhase(StrEnum):
    """The last known state of a session, on the Hub's side."""

    NONE = ""  #: nothing was started, or it was really stopped
    RUNNING = "running"
    RELEASING = "releasing"  #: captured; its processes are being ended
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    #: The service could not be asked; there may be a checkpoint or a stopped tree.
    UNKNOWN = "unknown"


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """The session's init on this machine, or its pod; never a later one."""

    pid: int = 0
    start: int = 0  #: clock ticks after boot (field 22 of ``/proc/PID/stat``)
    boot: str = ""  #: the machine's boot id
    pod: str = ""  #: uid of the pod
    name: str = ""  #: name of the pod


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choice at a session's fresh start, and what the Hub made of it."""

    options: dict[str, Any] = {}
    #: Settings of the spawner that came of them, each with its value, in order.
    overrides: tuple[dict[str, Any], ...] = ()
    given: dict[str, str] = {}  #: what ``given.py`` compares, by variable or path


class Pointer(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one server; the empty one means: nothing."""

    version: int = codec.VERSION
    phase: PointerPhase = PointerPhase.NONE
    session: str = ""  #: id of the session, from its fresh start on
    incarnation: str = ""
    checkpoint: str = ""
    #: Row of the session's API token in the Hub's database, not the token.
    token_id: int = 0
    port: int = 0
    location: Location = msgspec.field(default=Location(), name="place")
    #: Image as it was named at the fresh start: its digest does not tell the tag.
    image: str = ""
    choice: Choice | None = None  #: choice at the fresh start
    #: Time at which ``checkpoint`` became known; only for the home page.
    suspended_at: Moment = msgspec.field(default=0.0, name="saved_at")
    #: The service's facts about ``checkpoint``; only for the pages.
    suspension: Suspension | None = None
    #: Salted hashes of API tokens that we deleted with their sessions. Such a session
    #: may be kept, and brought back by its user: then its token is valid again. A token
    #: that a person has revoked is not among them.
    laid_aside: tuple[str, ...] = ()

    @property
    def suspended(self) -> bool:
        """Whether a checkpoint is known: a cold start would lose work."""
        return bool(self.checkpoint) and self.phase in {
            PointerPhase.RELEASING,
            PointerPhase.SUSPENDED,
            PointerPhase.RESUMING,
        }

    @property
    def begun(self) -> bool:
        """Whether anything is known that a spawner of ours has started."""
        return bool(self.incarnation) or self.location != Location()

    @property
    def out_of_sight(self) -> bool:
        """Whether something was started, and its location was never noted."""
        return self.phase is PointerPhase.RUNNING and self.location == Location()

    @property
    def precious(self) -> bool:
        """Whether login, OAuth client and this pointer must outlive a stop."""
        return self.suspended or self.phase is PointerPhase.UNKNOWN

    def to_state(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self))

    @classmethod
    def from_state(cls, state: Any) -> Pointer:
        """Read it from ``load_state()``; unreadable is *unknown*, never *nothing*."""
        if not state:
            return cls()
        try:
            pointer = decoders.convert(state, cls)
            codec.check_version(pointer.version, "The Hub's record of the session")
        except (msgspec.ValidationError, BadRequest) as error:
            _log.error("the state of a server cannot be read: %s", error)
            return cls(phase=PointerPhase.UNKNOWN)
        return pointer

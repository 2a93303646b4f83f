"""The journal's rows: one per session, one per checkpoint, one per audit line.

Plain frozen values. No decisions here, and never a token.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from jupyterhub_gpu_reclaim.common.models import (
    Aside,
    CheckpointInfo,
    Failure,
    GoneOn,
    Phase,
    SessionKey,
    Value,
)


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
    #: with ``term``: the highest stamp of a checkpoint that was taken into account
    generation: int = 0
    term: int = 0
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
    #: time since which a resume that has its place waits for memory of a GPU
    waiting_since: float | None = None
    #: checkpoint to bring back as soon as the session is suspended
    bring_back: str = ""
    #: last checkpoint that ``checkpoint`` was before, or that its user gave up under
    #: another name; the Hub's pointer may still name it
    dismissed: str = ""

    @property
    def stamp(self) -> tuple[int, int]:
        return self.term, self.generation

    @property
    def ids(self) -> set[str]:
        """The ids by which the Hub may remember it."""
        return {self.checkpoint, self.session, self.incarnation} - {""}


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
        """Whether that incarnation was saved as this one; never for an unknown one."""
        return self.info.incarnation == incarnation != ""

    def kept(self, keeping: Keeping, expires: float | None = None) -> CheckpointRow:
        return msgspec.structs.replace(self, keeping=keeping, expires=expires)

    def said(self, **words: Aside | GoneOn | str | None) -> CheckpointRow:
        info = msgspec.structs.replace(self.info, **words)
        return msgspec.structs.replace(self, info=info)

    def set_aside(self, until: float | None) -> CheckpointRow:
        return self.said(aside=Aside(until=until), gone_on=None)


class AuditRow(Value, frozen=True, kw_only=True):
    at: float
    key: SessionKey
    who: str
    what: str
    code: str = ""
    message: str = ""

"""Drain: a node is to be free of sessions, and how far that is."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from jupyterhub_gpu_reclaim.common.models import Failure, SessionKey, Value

#: The Hub's own machine, as a segment of a URL's path; no node is called that.
HERE = "-"


class NodeNotice(NamedTuple):
    """Notice of a cluster that a node is about to go."""

    node: str
    why: str  #: in a few words
    seconds: float | None = None  #: from the moment it is first seen; None: not said


class Drain(Value, frozen=True, kw_only=True):
    """An order to suspend whatever runs on a node. Times are since the epoch, in s."""

    node: str  #: empty: the Hub's own machine
    by: str
    since: float
    until: float | None = None  #: the node may be gone then; None: there is time
    why: str = ""  #: the cluster's notice; empty: a person's order
    #: whether sessions at work are started again at once, on other nodes
    comes_back: bool = False
    #: by a person's word, although the cluster's notice still stands
    over: bool = False

    @property
    def name(self) -> str:
        # At the beginning of a sentence.
        return self.node or "This machine"

    @property
    def because(self) -> str:
        # As part of a sentence.
        return f" ({self.why})" if self.why else ""


class DrainOrder(Value, frozen=True, kw_only=True):
    """Details that a person gives with the order."""

    seconds: float | None = None  #: until the node may be gone; null: there is time
    comes_back: bool = False  #: see ``Drain``


class DrainedSession(Value, frozen=True, kw_only=True):
    """One session of a node that is drained."""

    key: SessionKey
    state: Literal["waiting", "saving", "saved", "refused"]
    failure: Failure | None = None  #: why it could not be suspended, the last time


class DrainReport(Value, frozen=True, kw_only=True):
    """How far a drain is."""

    drain: Drain
    sessions: list[DrainedSession] = msgspec.field(default_factory=list)

    @property
    def ended(self) -> bool:
        return all(each.state == "saved" for each in self.sessions)

"""How one node is, and its faults: the one list of faults for people.

Pages, metrics, alerts and the command line all show :attr:`NodeHealth.faults`. Nothing
is decided by it: what is placed, moved or refused goes by what an order itself finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.drain import Drain  # noqa: TC001 - msgspec reads it
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.models import Decision, Finding, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Codes of what is wrong with the store, as a node sees it.
STORE_CODES = frozenset(
    reason.value
    for reason in (
        Reason.KEY_MISSING,
        Reason.STORE_ABSENT,
        Reason.STORE_DENIED,
        Reason.STORE_FAILED,
        Reason.STORE_FULL,
        Reason.STORE_UNREACHABLE,
    )
)
#: Free room in the store, in bytes, below which not even a small session may fit.
NO_ROOM = 50 * 10**6


class CardStatus(Value, frozen=True, kw_only=True):
    """One GPU; ``None`` means not known, sizes in bytes."""

    uuid: str = ""  #: 32 hexadecimal digits, as in samples
    name: str = ""
    total: int | None = None
    free: int | None = None
    busy_percent: float | None = None
    divided: bool | None = None  #: into MIG instances


class NodeStatus(Value, frozen=True, kw_only=True):
    """One node, as its agent sees it."""

    host: str  #: as the machine, or the agent's pod, calls itself
    version: str  #: of the agent
    criu: str = ""  #: version; empty: none that works
    driver: str = ""  #: version of the GPU's driver; empty: none
    cards: list[CardStatus] | None = None  #: None: they do not answer
    state_free: int | None = None  #: bytes on the disk of the agent's records
    store_free: int | None = None  #: bytes; None: the store has no bound that it tells
    term: int = 0  #: the highest that it has seen of a service; 0: none
    findings: list[Finding] = msgspec.field(default_factory=list)

    @property
    def faults(self) -> list[Finding]:
        found = [
            each for each in self.findings if each.fatal or each.code in STORE_CODES
        ]
        if self.store_free is not None and self.store_free < NO_ROOM:
            left = text.size(self.store_free)
            found.append(finding(Reason.STORE_FULL, needed="more", free=left))
        return found

    @property
    def ready(self) -> bool:
        return not self.faults

    @property
    def unheard(self) -> NodeStatus:
        """Its fixed part, which holds while the agent is silent."""
        cards = [
            msgspec.structs.replace(card, free=None, busy_percent=None)
            for card in self.cards or ()
        ]
        return msgspec.structs.replace(
            self,
            cards=None if self.cards is None else cards,
            state_free=None,
            store_free=None,
        )


class NodeHealth(Value, frozen=True, kw_only=True):
    """One node, as it was heard of last."""

    node: str  #: empty: the Hub's own machine
    status: NodeStatus | None = None  #: None: never heard of by this service
    silent_since: float | None = None  #: seconds since the epoch
    silence: Finding | None = None  #: why it is silent
    silence_detail: str = ""  #: more of that, for administrators
    drain: Drain | None = None  #: None: it is not being drained

    @property
    def faults(self) -> list[Finding]:
        found = []
        if self.silent_since is not None:
            why = self.silence or finding(Reason.AGENT_UNREACHABLE)
            if self.silence_detail:
                message = f"{why.message.removesuffix('.')} ({self.silence_detail})."
                why = msgspec.structs.replace(why, message=message)
            found.append(why)
        elif self.status is not None:
            found += self.status.faults
        if self.drain is not None:
            found.append(closed(self.drain))
        return found


def closed(drain: Drain) -> Finding:
    """The finding that nothing is to run on a node, since when and until when."""
    since = text.moment(drain.since)
    if drain.node:
        why = f" since {since}{drain.because}"
        return finding(Reason.NODE_DRAINS, node=drain.node, why=why)
    return finding(Reason.NODE_CLOSED, since=since)


def no_return(nodes: Sequence[NodeHealth]) -> Decision | None:
    """For a user: why nothing can be resumed now; None: some node can, or may."""
    # A full store prevents no return, and for one drained node there are others.
    spared = {Reason.STORE_FULL.value, Reason.NODE_DRAINS.value}
    found = [
        next((each for each in node.faults if each.code not in spared), None)
        for node in nodes
    ]
    if not found or found[0] is None or not all(found):
        return None
    code = found[0].code
    why = "its machine does not answer, or cannot work"
    if code in STORE_CODES:
        why = "the store that holds it cannot be used"
    elif code == Reason.NODE_CLOSED.value:
        why = "its machine is closed for maintenance"
    told = f"It is kept, but cannot be resumed at the moment: {why}."
    return Decision(reclaim=False, code=code, message=told)

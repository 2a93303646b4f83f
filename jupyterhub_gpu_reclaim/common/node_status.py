"""How one node is: what its agent tells of it, for the page of nodes.

Told for people. Nothing is decided by it: what is placed, moved or refused goes by what
an order itself finds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from jupyterhub_gpu_reclaim.common.models import Finding, Value


class CardStatus(Value, frozen=True, kw_only=True):
    """One GPU; ``None`` means not known, sizes in bytes."""

    uuid: str = ""  #: 32 hexadecimal digits, as in samples
    name: str = ""
    total: int | None = None
    free: int | None = None
    busy_percent: float | None = None
    divided: bool | None = None  #: into MIG instances


class StoreStatus(Value, frozen=True, kw_only=True):
    """The store, as one node sees it (law 14).

    ``here``: it is the one of the node's master key. ``absent``: another one is in its
    place, or none. ``unknown``: it does not answer, or the key is not there.
    """

    state: Literal["here", "absent", "unknown"]
    why: str = ""  #: a sentence, where it is not here


class NodeStatus(Value, frozen=True, kw_only=True):
    """One node, as its agent sees it."""

    host: str  #: as the machine, or the agent's pod, calls itself
    version: str  #: of the agent
    criu: str = ""  #: version; empty: none that works
    driver: str = ""  #: version of the GPU's driver; empty: none
    cards: list[CardStatus] | None = None  #: None: they do not answer
    state_free: int | None = None  #: bytes on the disk of the agent's records
    store_free: int | None = None  #: bytes; None: the store has no bound that it tells
    store_capacity: int | None = None  #: bytes of the place in all, likewise
    store: StoreStatus | None = None  #: None: it was not looked at
    term: int = 0  #: the highest that it has seen of a service; 0: none
    findings: list[Finding] = msgspec.field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether it can save sessions."""
        return not any(finding.fatal for finding in self.findings)


class NodeHealth(Value, frozen=True, kw_only=True):
    """One node, as it was heard of last."""

    node: str  #: empty: the Hub's own machine
    status: NodeStatus | None = None  #: None: never heard of by this service
    silent_since: float | None = None  #: seconds since the epoch
    why: str = ""  #: it is silent

    @property
    def ready(self) -> bool:
        """Whether it answers, and can save sessions."""
        heard = self.silent_since is None and self.status is not None
        return heard and self.status is not None and self.status.ready

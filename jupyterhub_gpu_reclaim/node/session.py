"""A session on this node, as it was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.agent_orders import PodHint

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey


@dataclass(frozen=True, slots=True)
class Session:
    """One incarnation on this node.

    Attributes:
        init_pid: host pid of its init.
        init_start: the init's start time in clock ticks since boot; with the pid it
            names one process for ever.
        holding: the init was started to wait for a tree (``hold``).
        container: id of the container that it lives in; empty outside of Kubernetes.
        hint: the service's facts about it. Its ``pod`` is where it was found.
        id: of the session, through all its returns; empty: not known.
        account: at the Hub that it belongs to; empty: not known.
    """

    incarnation: str
    key: SessionKey
    init_pid: int
    init_start: int
    holding: bool
    container: str = ""
    hint: PodHint = field(default_factory=PodHint)
    id: str = ""
    account: str = ""

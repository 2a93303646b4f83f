"""A session on this node, as it was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.agent_orders import PodHint

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey


@dataclass(frozen=True, slots=True)
class Session:
    """One incarnation on this node."""

    incarnation: str
    key: SessionKey
    init_pid: int  #: on the host
    #: clock ticks since boot; with the pid it names one process for ever
    init_start: int
    holding: bool  #: started to wait for a tree (``hold``)
    container: str = ""  #: empty outside of Kubernetes
    #: the service's facts, or of an init of root its own; ``pod``: where it was found
    hint: PodHint = field(default_factory=PodHint)

"""A session on this node, as it was found."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from jupyterhub_gpu_reclaim.common.models import SessionKey, Value


class PodHint(Value, frozen=True, kw_only=True):
    """The service's facts about a session, which the session itself cannot change."""

    pod: str = ""  #: uid of the pod that it lives in; empty outside of Kubernetes
    key: SessionKey | None = None  #: whose it is; None where that was not said
    image: str = ""  #: of its container, as the kubelet names it
    #: Of its node, for a later restore.
    node_labels: dict[str, str] = msgspec.field(default_factory=dict)
    session: str = ""  #: id of the session
    account: str = ""  #: that it belongs to


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

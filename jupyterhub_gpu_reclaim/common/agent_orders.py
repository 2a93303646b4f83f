"""What an agent can be ordered: a class per kind, which is all that is said of it.

The service's clients, the agent's routes and its node are loops over
:data:`AGENT_ORDERS`; a new kind is a class here, and a method of ``node.local_node``
of its name. All kinds but ``next-wake`` change something, all are idempotent and may be
repeated after any failure. ``POST /v1/{about}/{subject}/{kind}`` has an order's fields
as its body.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from jupyterhub_gpu_reclaim.common.bounds import Count, Identifier, Name
from jupyterhub_gpu_reclaim.common.models import Mark as Said
from jupyterhub_gpu_reclaim.common.models import SessionKey, Value
from jupyterhub_gpu_reclaim.common.text import dashed


class PodHint(Value, frozen=True, kw_only=True):
    """The service's facts about a session, which the session itself cannot change."""

    pod: str = ""  #: uid of the pod that it lives in; empty outside of Kubernetes
    key: SessionKey | None = None  #: whose it is; None where that was not said
    image: str = ""  #: of its container, as the kubelet names it
    #: Of its node, for a later restore.
    node_labels: dict[str, str] = msgspec.field(default_factory=dict)
    session: str = ""  #: id of the session
    account: str = ""  #: that it belongs to


class AgentOrder(Value, frozen=True, kw_only=True):
    """An order; ``subject`` is an incarnation, or of the last two a checkpoint."""

    kind: ClassVar[str]  #: its class's name, with dashes
    about: ClassVar[Literal["sessions", "checkpoints"]] = "sessions"
    #: Whether events answer it, of which the last has the end; else nothing does.
    streams: ClassVar[bool] = False
    #: Whether it waits for no process to end.
    quick: ClassVar[bool] = False
    #: Whether it undoes what it has begun when it is called off, or leaves it to be
    #: tried again.
    cancellable: ClassVar[bool] = False
    #: Whether the image of the session's container has to be known, for its return.
    needs_image: ClassVar[bool] = False

    hint: PodHint = PodHint()

    def __init_subclass__(cls) -> None:
        cls.kind = dashed(cls.__name__)


class Saving(AgentOrder, frozen=True):
    """An order of which a checkpoint comes, with what it is to be called."""

    streams: ClassVar = True
    cancellable: ClassVar = True
    needs_image: ClassVar = True

    checkpoint: Identifier
    generation: Count = 1


class Capture(Saving, frozen=True):
    """Save a tree that stands still from then on; ends with its checkpoint."""

    #: ``at`` of the sample that showed it idle, by its agent's clock: long after that
    #: it is refused, and 0 begins nothing. None: it is asked for, idle or not.
    seen: float | None = None


class Save(Saving, frozen=True):
    """Save a tree that goes on; any other order calls it off, unless it has ended."""

    name: Name = ""  #: what a person calls the save point


class Restore(AgentOrder, frozen=True):
    """Restore a tree below an init that waits for it; ends with the tree."""

    streams: ClassVar = True
    needs_image: ClassVar = True

    checkpoint: Identifier
    #: those of a save point come back, what is newer is put beside them
    put_files_back: bool = False


class Nap(AgentOrder, frozen=True):
    """Move a tree's GPU memory out; ends with the tree, which runs on in any case."""

    # Its server answers; what is sent to a stopped program wakes it, without an order.

    streams: ClassVar = True
    cancellable: ClassVar = True

    seen: float | None = None  #: as of a capture


class Wake(AgentOrder, frozen=True):
    """Move a tree's GPU memory back; if that fails, its agent tries again by itself."""

    streams: ClassVar = True
    cancellable: ClassVar = True


class NextWake(AgentOrder, frozen=True):
    """Follow the wake under way, or the next one; empty if none begins for a while."""

    streams: ClassVar = True


class Thaw(AgentOrder, frozen=True):
    """Let a captured tree go on; its checkpoint is discarded."""


class Release(AgentOrder, frozen=True):
    """End a captured tree; refused unless that checkpoint is committed."""

    checkpoint: Identifier


class Kill(AgentOrder, frozen=True):
    """End an orphan; refused while a capture runs."""


class Cancel(AgentOrder, frozen=True):
    """Call off what runs, if it can be called off."""

    quick: ClassVar = True


class Discard(AgentOrder, frozen=True):
    """Delete a checkpoint."""

    about: ClassVar = "checkpoints"

    #: the incarnation that came from it: refused if that does not run any more
    runs: str = ""


class Mark(AgentOrder, frozen=True):
    """Seal a word about a checkpoint beside it; ``CheckpointInfo.mark`` tells of it."""

    # Of two words of one service the lower number is refused where it comes later.

    about: ClassVar = "checkpoints"
    quick: ClassVar = True

    said: Said
    word: Annotated[int, msgspec.Meta(ge=0, lt=10**10)]


AGENT_ORDERS: tuple[type[AgentOrder], ...] = tuple(
    each
    for each in (*Saving.__subclasses__(), *AgentOrder.__subclasses__())
    if each is not Saving
)
#: Kinds of operations that a cancel calls off.
CANCELLABLE = frozenset(each.kind for each in AGENT_ORDERS if each.cancellable)

"""The reconciler's input and output: observed state in, one action out.

Plain values. ``Facts`` are one session as agent and Hub see it, with None for a part
that did not answer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.models import TreeState

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, HubState, Tree


class Do(StrEnum):
    """What the worker does next for a session."""

    NOTHING = "nothing"
    WAIT = "wait"  #: something is under way; look again soon
    READY = "ready"
    ATTACH = "attach to the capture"
    COMMITTED = "take the commit"
    ROLLED_BACK = "take the roll back"
    CANCEL = "cancel"
    STOP_AT_HUB = "ask the Hub for a stop"
    RELEASE = "release"
    RELEASED = "take the release"
    THAW = "thaw"
    RESTORE = "restore"
    RESTORED = "take the restore"
    GIVE_UP = "give the restore up"
    KILL = "kill"
    ADOPT = "adopt"
    VANISHED = "take the end"
    LOST = "take the loss"
    FOUND_CAPTURED = "take what is captured"
    FOUND_SAVED = "take what is saved"
    SET_ASIDE = "set aside"
    REPORT = "report"


class Act(NamedTuple):
    """One action, on one tree or checkpoint."""

    do: Do
    tree: Tree | None = None
    saved: CheckpointInfo | None = None
    #: only if the same action has been due for ``orphan_grace``
    patient: bool = False


class Facts(NamedTuple):
    """One session as agent and Hub see it now; ``None``: no answer."""

    trees: tuple[Tree, ...] | None
    saved: tuple[CheckpointInfo, ...] | None  #: committed, oldest generation first
    hub: HubState | None
    #: ids of checkpoints that the journal knows
    known: frozenset[str] = frozenset()

    @property
    def silent(self) -> bool:
        """Whether a part did not answer: about its processes, or its checkpoints."""
        if self.trees is None or self.saved is None:
            return True
        return any(tree.state is TreeState.UNKNOWN for tree in self.trees)

    def tree(self, incarnation: str) -> Tree | None:
        """That incarnation, if anything is left of it."""
        return next((t for t in self.left() if t.incarnation == incarnation), None)

    def left(self) -> tuple[Tree, ...]:
        """All trees that are not gone."""
        return tuple(t for t in self.trees or () if t.state is not TreeState.GONE)

    def running(self) -> Tree | None:
        """A tree that runs, whichever it is."""
        return next((t for t in self.left() if t.state is TreeState.RUNNING), None)

    def unknown(self) -> list[CheckpointInfo]:
        """Committed checkpoints that the journal does not know."""
        return [info for info in self.saved or () if info.id not in self.known]

    def missed(self, checkpoint: str) -> bool:
        """Whether that checkpoint is committed and the journal does not know it."""
        return any(info.id == checkpoint for info in self.unknown())

    def checkpoint(self, checkpoint: str) -> CheckpointInfo | None:
        """That checkpoint, if it is committed."""
        return next((s for s in self.saved or () if s.id == checkpoint), None)


NOTHING = Act(Do.NOTHING)
WAIT = Act(Do.WAIT)

"""What agent, store and Hub say of one session at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.models import TreeState

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, HubState, Tree


class Observed(NamedTuple):
    """One session as agent and Hub see it now; ``None``: no answer."""

    trees: tuple[Tree, ...] | None
    saved: tuple[CheckpointInfo, ...] | None  #: committed, the oldest first
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

    def whole(self) -> tuple[Tree, ...]:
        """All trees that have memory of their own: no places that are held for one."""
        return tuple(t for t in self.left() if t.state is not TreeState.HOLDING)

    def running(self) -> Tree | None:
        """A tree that runs, whichever it is, and whether or not it naps."""
        return next((tree for tree in self.left() if tree.runs), None)

    def frozen(self) -> Tree | None:
        """A tree that is, or is being, captured."""
        return next((tree for tree in self.left() if tree.frozen), None)

    def unknown(self) -> list[CheckpointInfo]:
        """Committed checkpoints that the journal does not know."""
        return [info for info in self.saved or () if info.id not in self.known]

    def missed(self, checkpoint: str) -> bool:
        """Whether that checkpoint is committed and the journal does not know it."""
        return any(info.id == checkpoint for info in self.unknown())

    def checkpoint(self, checkpoint: str) -> CheckpointInfo | None:
        """That checkpoint, if it is committed."""
        return next((s for s in self.saved or () if s.id == checkpoint), None)

"""The answers of agent, store and Hub about one session at one moment."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.models import HubState, TreeState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        Mark,
        Tree,
    )


class Observed(NamedTuple):
    """A session as agent and Hub see it now; ``None``: no answer."""

    trees: tuple[Tree, ...] | None
    saved: tuple[CheckpointInfo, ...] | None  #: committed, the oldest first
    hub: HubState | None
    #: by checkpoint: the last word, where the store does not show it yet; what is
    #: deleted is set aside
    said: Mapping[str, Mark] = MappingProxyType({})

    @property
    def silent(self) -> bool:
        """Whether a part did not answer on the session's processes or checkpoints."""
        if self.trees is None or self.saved is None:
            return True
        return any(tree.state is TreeState.UNKNOWN for tree in self.trees)

    @property
    def settled(self) -> bool:
        """Whether the Hub says that it runs, or that it is stopped, and no more."""
        return self.hub in {HubState.RUNNING, HubState.STOPPED}

    def tree(self, incarnation: str) -> Tree | None:
        return next((t for t in self.left() if t.incarnation == incarnation), None)

    def left(self) -> tuple[Tree, ...]:
        return tuple(t for t in self.trees or () if t.state is not TreeState.GONE)

    def whole(self) -> tuple[Tree, ...]:
        """Return all trees with memory of their own: no places held for one."""
        return tuple(t for t in self.left() if t.state is not TreeState.HOLDING)

    def running(self) -> Tree | None:
        return next((tree for tree in self.left() if tree.runs), None)

    def frozen(self) -> Tree | None:
        return next((tree for tree in self.left() if tree.frozen), None)

    def checkpoint(self, checkpoint: str) -> CheckpointInfo | None:
        return next((s for s in self.saved or () if s.id == checkpoint), None)

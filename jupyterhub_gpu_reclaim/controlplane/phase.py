"""Phase: what a session is now, computed from those who know.

Pure. Agent, store and Hub say what there is (``Observed``, with the words that the
store does not show yet). Of the row count the words of people (what was
stopped, and up to which stamp), and what we have begun that nobody else can show yet.
The rest of the row is what was computed last. The first line that fits counts; None:
what was computed last holds.

====================================  =========  ===================================
tree (agent)                          Hub        phase
====================================  =========  ===================================
no answer of agent or store           any        None
any, of one at rest or in our return  other¹     None
running, napping                      stopped    None, if its user has stopped it or
                                                 its pod ends
running, napping                      any        RUNNING, NAPPING
captured, in what is current          any        RELEASING
captured, in what was set aside       any        None
captured, saved nowhere               any        None, if we saved it; else RUNNING: it
                                                 is thawed
capturing, of a session that ran      any        SUSPENDING
capturing, otherwise, or a save       any        RUNNING; None, if it is released, or at
                                                 rest and the Hub has stopped it
gone², and its capture was committed  any        RELEASING
gone², and was being captured         any        SUSPENDED in what it goes back to;
                                                 else STOPPED
gone, and released                    stopped,   SUSPENDED
                                      spawning
gone, and our return                  stopped,   SUSPENDED
                                      running
gone                                  stopped    SUSPENDED in what is current; else
                                                 STOPPED
otherwise                             any        None
====================================  =========  ===================================

¹ neither running nor stopped: the Hub asks about it, or has not finished its start.
² or its init holds a place for nothing.

The current checkpoint is the newest by stamp that is not set aside. Where a person has
set one aside, nothing older of that session is current either, unless a later word (by
the marks' numbers) has chosen that; and nothing is that is older than what was decided
about already (``SessionRow.stamp``), but for what the session goes back to: while it
runs, its newest save point, or what it came from.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.models import HubState, Phase, TreeState
from jupyterhub_gpu_reclaim.controlplane import retention
from jupyterhub_gpu_reclaim.controlplane.session import LIVE, RESTS, Intent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Mark, Tree
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow


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
        return self.trees or ()

    def whole(self) -> tuple[Tree, ...]:
        """Return all trees with memory of their own: no places held for one."""
        return tuple(t for t in self.left() if t.state is not TreeState.HOLDING)

    def running(self) -> Tree | None:
        return next((tree for tree in self.left() if tree.runs), None)

    def frozen(self) -> Tree | None:
        return next((tree for tree in self.left() if tree.frozen), None)

    def checkpoint(self, checkpoint: str) -> CheckpointInfo | None:
        return next((s for s in self.saved or () if s.id == checkpoint), None)


class State(NamedTuple):
    phase: Phase
    tree: Tree | None = None  #: the tree that is the session
    saved: CheckpointInfo | None = None  #: its current checkpoint; None: none
    patient: bool = False  #: only if it has been so for ``orphan_grace``


def derive(row: SessionRow, seen: Observed) -> State | None:
    if seen.silent:
        return None
    tree = _its_tree(row, seen)
    if tree is None:
        return _of_gone(row, seen)
    if row.phase in {Phase.RESUMING, *RESTS} and not seen.settled:
        return None  # the Hub asks about it, or has not finished its start
    return _of_running(row, seen, tree) if tree.runs else _of_frozen(row, seen, tree)


def differs(row: SessionRow, state: State, seen: Observed) -> bool:
    """Whether it is something else than what was computed last.

    A session that runs keeps the name of what it came from when that has expired.
    """
    if row.phase is not state.phase:
        return True
    if state.tree is not None and state.tree.incarnation != row.incarnation:
        return True
    if state.phase is Phase.SUSPENDING:
        return False
    if state.phase in LIVE and any(i.stamp > row.stamp for i in seen.saved or ()):
        return True
    other = state.saved is not None and state.saved.id != row.checkpoint
    return other and (state.phase not in LIVE or not row.checkpoint)


def _its_tree(row: SessionRow, seen: Observed) -> Tree | None:
    """The tree that is the session, running or frozen: its own, or else another."""
    own = seen.tree(row.incarnation)
    if own is not None and (own.runs or own.frozen):
        return own
    under_way = row.phase in {Phase.SUSPENDING, Phase.RELEASING}
    replaced = own is None and seen.hub is HubState.RUNNING
    if under_way or not (row.phase.rests or replaced):
        return None
    return seen.running() or seen.frozen()


def _of_running(row: SessionRow, seen: Observed, tree: Tree) -> State | None:
    ended = seen.hub is HubState.STOPPED and row.phase.rests
    over = row.phase is Phase.STOPPED or tree.ending or row.intent is Intent.RESUME
    if ended and over and tree.incarnation == row.incarnation:
        return None
    naps = tree.state is TreeState.NAPPING
    phase = Phase.NAPPING if naps else Phase.RUNNING
    return State(phase, tree, goes_back_to(row, seen, tree), patient=ended)


def _of_frozen(row: SessionRow, seen: Observed, tree: Tree) -> State | None:
    saved = seen.checkpoint(tree.checkpoint)
    if tree.state is TreeState.CAPTURED and saved is not None:
        taken = is_taken(row, seen, saved, tree)
        return State(Phase.RELEASING, tree, saved) if taken else None
    back = goes_back_to(row, seen, tree)
    if tree.state is TreeState.CAPTURED:
        under_way = row.phase in {Phase.SUSPENDING, Phase.RELEASING}
        return None if under_way else State(Phase.RUNNING, tree, back)
    if row.phase is Phase.RELEASING or (
        seen.hub is HubState.STOPPED and row.phase.rests
    ):
        return None
    ran = row.phase in LIVE and tree.incarnation == row.incarnation
    suspends = row.phase is Phase.SUSPENDING or (ran and tree.operation != "save")
    return State(Phase.SUSPENDING if suspends else Phase.RUNNING, tree, back)


def _of_gone(row: SessionRow, seen: Observed) -> State | None:
    own, hub = seen.tree(row.incarnation), seen.hub
    returns = any(tree.state is TreeState.RESTORING for tree in seen.left())
    match row.phase:
        case Phase.SUSPENDING:
            saved = seen.checkpoint(row.attempt)
            if saved is not None:
                return State(Phase.RELEASING, None, saved)
            return None if returns else _rests(row, seen)
        case Phase.RELEASING:
            over = hub in {HubState.STOPPED, HubState.SPAWNING} or bool(seen.left())
            saved = seen.checkpoint(row.checkpoint)
            return State(Phase.SUSPENDED, None, saved) if over and not own else None
        case Phase.RESUMING:
            saved, patient = seen.checkpoint(row.checkpoint), hub is HubState.RUNNING
            over = seen.settled and own is None
            return State(Phase.SUSPENDED, None, saved, patient) if over else None
    stands = (own is not None) if row.phase in LIVE else bool(seen.left())
    if hub is not HubState.STOPPED or stands or returns:
        return None
    return _rests(row, seen)


def _rests(row: SessionRow, seen: Observed) -> State:
    saved = current(row, seen)
    suspended = saved is not None or row.phase is Phase.SUSPENDED
    return State(Phase.SUSPENDED if suspended else Phase.STOPPED, None, saved)


def current(row: SessionRow, seen: Observed) -> CheckpointInfo | None:
    """The checkpoint that a session without processes is suspended in; None: none."""
    saved, said = seen.saved or (), seen.said
    newer = retention.newest(
        info
        for info in saved
        if info.stamp > row.stamp
        and not is_aside(info, said)
        and not is_left(info, saved, said)
    )
    if newer is not None:
        return newer
    if row.phase is Phase.STOPPED:
        return None
    if row.phase is Phase.SUSPENDED:
        return seen.checkpoint(row.checkpoint)
    return seen.checkpoint(row.checkpoint) or _save_point(row.incarnation, seen)


def is_current(row: SessionRow, seen: Observed) -> bool:
    """Whether the store has nothing that is the session, but what the row names."""
    saved = current(row, seen)
    return saved is None or saved.id == row.checkpoint


def goes_back_to(row: SessionRow, seen: Observed, tree: Tree) -> CheckpointInfo | None:
    """What a session that runs goes back to: its newest save point, or its parent."""
    names = {tree.origin or ("" if tree.frozen else tree.checkpoint)}
    if tree.incarnation == row.incarnation and not row.phase.rests:
        names.add(row.checkpoint)
    point = _save_point(tree.incarnation, seen, goes_on=True)
    return retention.newest(
        info
        for info in seen.saved or ()
        if (info.id in names and not is_aside(info, seen.said)) or info == point
    )


def _save_point(
    incarnation: str, seen: Observed, *, goes_on: bool = False
) -> CheckpointInfo | None:
    """What an incarnation was last saved as, unless somebody has set that aside."""
    own = (
        info
        for info in seen.saved or ()
        if info.incarnation == incarnation != "" and info.goes_on >= goes_on
    )
    newest = retention.newest(own)
    return None if newest is None or is_aside(newest, seen.said) else newest


def is_taken(
    row: SessionRow, seen: Observed, saved: CheckpointInfo, tree: Tree
) -> bool:
    """Whether a captured tree, and what it is saved as, is the session from now on.

    Not where that was set aside, or something newer was decided about.
    """
    own = tree.incarnation == row.incarnation and not row.phase.rests
    new = saved.stamp > row.stamp and not is_aside(saved, seen.said)
    return own or new or saved.id == row.checkpoint


def went_on(info: CheckpointInfo, said: Mapping[str, Mark], *, ruled: bool) -> bool:
    """Whether its session went on, and its user is told so before it comes back.

    ``ruled``: what it came back from is kept like a save point, however long it runs;
    else it would have expired soon after.
    """
    if said.get(info.id, info.mark).gone_on is not None:
        return ruled
    chosen = info.id in said or info.word > (0, 0)
    return info.goes_on and not chosen


def is_aside(info: CheckpointInfo, said: Mapping[str, Mark]) -> bool:
    return said.get(info.id, info.mark).aside is not None


def is_left(
    info: CheckpointInfo, saved: Iterable[CheckpointInfo], said: Mapping[str, Mark]
) -> bool:
    """Whether something newer of its session was set aside since the word on it."""
    word = _word(info, said)
    return any(
        is_aside(other, said) and other.stamp > info.stamp and _word(other, said) > word
        for other in saved
        if other.session == info.session
    )


def _word(info: CheckpointInfo, said: Mapping[str, Mark]) -> tuple[float, int]:
    """Number of the last word on it; what the store does not show yet is later."""
    return (math.inf, not is_aside(info, said)) if info.id in said else info.word

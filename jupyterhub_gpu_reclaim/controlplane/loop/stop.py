"""What a stop does next: the reconciler's answer where the Hub is about to end it.

It is called again after each action, until it is an answer. What is saved is released,
a stop by a person is a real one, and nothing is ended or forgotten of which it is not
known that nothing may come back. Pure.

===========  =====================================  ==================================
journal      agent, store                           action
===========  =====================================  ==================================
of another incarnation than the one to be ended:
any          something of it is left, not frozen    end it
             another tree is there, or it is under  keep it: the Hub is older, or was
             another name                           renamed
             frozen, while anything is under way    keep it
             being captured                         refuse: in flight
             captured in what is current, or new    found captured (→ RELEASING)
             captured, not committed                keep it
             captured in what was set aside         as if none was there
             its own newer checkpoint               found saved (→ SUSPENDED)
             another newer checkpoint               keep it: the reconciler asks
             none                                   keep it if the journal has anything
                                                    that may come back, else end it
of the one to be ended:
SUSPENDING   any                                    refuse: in flight
RESUMING     it has come back                       restored (→ RUNNING)
             it is frozen again                     refuse: in flight
             gone                                   give the restore up (→ SUSPENDED)
             otherwise                              it is saved
RUNNING …,   being captured                         refuse: in flight
STOPPED      captured in what is current, or new    found captured (→ RELEASING)
             captured, not committed                keep it
             not gone, otherwise                    end it
             gone, another one is there             keep it: Hub and journal are older
             gone, saved and not known              found saved (→ SUSPENDED)
             gone, a later session was saved        keep it: Hub and journal are older
             gone, what it came from is kept        lost (→ SUSPENDED)
             gone, otherwise                        end it
RELEASING,   any                                    it is saved
SUSPENDED
===========  =====================================  ==================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import Phase, TreeState
from jupyterhub_gpu_reclaim.controlplane.checkpoints import lineage
from jupyterhub_gpu_reclaim.controlplane.loop.start import UNANSWERED, in_flight
from jupyterhub_gpu_reclaim.controlplane.model.actions import Action, ActionKind
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE, SAVED

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Tree
    from jupyterhub_gpu_reclaim.controlplane.model.asked import Asked
    from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow

END = Action(ActionKind.END)
KEEP = Action(ActionKind.KEEP)
_SAVED = Action(ActionKind.SAVED)


def settle_stop(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """What is to be done for a stop.

    Args:
        row: what the journal says; a fresh row if it says nothing.
        observed: what agent and store say; ``None`` is no answer (yet).
        asked: the question.
    """
    if row.incarnation != asked.incarnation:
        return _of_another(row, observed, asked)
    if row.phase is Phase.SUSPENDING:
        return in_flight("suspend")
    if row.phase is Phase.RESUMING:
        return _return(row, observed, asked)
    return _SAVED if row.phase in SAVED else _live(row, observed)


def _of_another(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """An incarnation that the journal does not know: agent and store know it.

    Nobody has stopped one that has ended: where anything may come back, the Hub must
    not forget the session.
    """
    if observed.trees is None:
        return UNANSWERED
    tree = observed.tree(asked.incarnation)
    if tree is not None and not tree.frozen:
        return Action(ActionKind.END, tree)
    others = [one for one in observed.whole() if one != tree]
    if others or (tree is None and asked.elsewhere):
        return KEEP
    if tree is not None:
        free = row.phase in {*LIVE, Phase.STOPPED, Phase.SUSPENDED}
        action = _frozen(row, tree, observed) if free else KEEP
        if action is not None:
            return action
    if observed.saved is None:
        return UNANSWERED
    newer = lineage.missed(row, observed)
    its = newer is not None and newer.incarnation == asked.incarnation
    if its and tree is None:
        return Action(ActionKind.FOUND_SAVED, None, newer)
    # Else the Hub asks about an earlier life: what it was told of this one is lost.
    there = row.phase in {*SAVED, *LIVE, Phase.RESUMING} and row.checkpoint
    return KEEP if newer or there else END


def _frozen(row: SessionRow, tree: Tree, observed: Observed) -> Action | None:
    """Its tree is, or is being, saved; None: as what was set aside since."""
    if tree.state is TreeState.CAPTURING:
        return in_flight("suspend")
    if observed.saved is None:
        return UNANSWERED
    saved = observed.checkpoint(tree.checkpoint)
    if saved is None:  # as in a store that was put back: it is all there is
        return KEEP
    over = lineage.takes_over(row, observed, tree)
    return Action(ActionKind.FOUND_CAPTURED, tree, saved) if over else None


def _return(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """How a return has ended of which the Hub knows more than the journal."""
    if asked.came_back:
        return Action(ActionKind.RESTORED)
    if observed.trees is None:
        return UNANSWERED
    tree = observed.tree(row.incarnation)
    if tree is None:
        return Action(ActionKind.GIVE_UP)
    if tree.frozen:
        return in_flight("suspend")
    return Action(ActionKind.RESTORED) if tree.runs else _SAVED


def _live(row: SessionRow, observed: Observed) -> Action:
    """A session whose programs have ended is what was saved of it, if anything was.

    Also one that the journal has as stopped: it may be older than that.
    """
    if observed.trees is None:
        return UNANSWERED
    tree = observed.tree(row.incarnation)
    if tree is not None:
        action = _frozen(row, tree, observed) if tree.frozen else END
        return action or (KEEP if lineage.missed(row, observed) else END)
    if observed.whole():
        return KEEP
    if observed.saved is None:
        return UNANSWERED
    missed = [info for info in observed.unknown() if _is_its(info, row)]
    if missed:
        return Action(ActionKind.FOUND_SAVED, None, missed[-1])
    if lineage.missed(row, observed):
        return KEEP
    kept = observed.checkpoint(row.checkpoint)
    return Action(ActionKind.LOST, None, kept) if kept is not None else END


def _is_its(info: CheckpointInfo, row: SessionRow) -> bool:
    """Whether that checkpoint is of the row's session; older agents wrote no id."""
    if info.session and row.session:
        return info.session == row.session
    return info.incarnation == row.incarnation

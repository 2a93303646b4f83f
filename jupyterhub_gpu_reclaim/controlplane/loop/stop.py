"""Settles a stop: the reconciler's answer where the Hub is about to end a session.

It is called again after each action, until it is an answer. What is saved is released,
a stop by a person is a real one, and nothing is ended or forgotten of which it is not
known that nothing may come back. Pure.

===========  =====================================  ==================================
journal      agent, store                           action
===========  =====================================  ==================================
SUSPENDING¹  any                                    refuse: in flight
RESUMING¹    it has come back                       take that (→ RUNNING)
             it is frozen again                     refuse: in flight
             gone                                   give the restore up (→ SUSPENDED)
             otherwise                              it is saved
RELEASING¹,  any                                    it is saved
SUSPENDED¹
any other    something of it is left, not frozen    end it
             another tree is there                  keep it: the Hub is older
             frozen, while anything is under way²   keep it
             being captured                         refuse: in flight
             captured in what is current, or new    take it (→ RELEASING)
             captured, not committed                keep it
             captured in what was set aside         as if none was there
             a newer checkpoint, of it              take it (→ SUSPENDED)
             the same, while anything is under way² keep it
             a newer checkpoint, of another         keep it: the reconciler asks
             what it came from is kept¹             take that (→ SUSPENDED)
             it is being saved¹                     keep it: that may be committed yet
             something else may come back²          keep it
             the Hub's pointer names one that       keep it
             nobody knows
             otherwise                              end it
===========  =====================================  ==================================

¹ of the incarnation that is to be ended; ² of another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import Phase, TreeState
from jupyterhub_gpu_reclaim.controlplane import phase
from jupyterhub_gpu_reclaim.controlplane.loop.start import (
    UNANSWERED,
    in_flight,
    is_accounted_for,
)
from jupyterhub_gpu_reclaim.controlplane.model.actions import Action, ActionKind
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE, RESTS, SAVED
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Tree
    from jupyterhub_gpu_reclaim.controlplane.model.asked import Asked
    from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow

END = Action(ActionKind.END)
KEEP = Action(ActionKind.KEEP)
_SAVED = Action(ActionKind.SAVED)


def settle_stop(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """Return what must be done for a stop.

    Args:
        row: the journal's row; a fresh row if it has none.
        observed: the answers of agent and store; ``None`` is no answer (yet).
        asked: the question.
    """
    mine = row.incarnation == asked.incarnation
    if mine and row.phase is Phase.SUSPENDING:
        return in_flight("suspend")
    if mine and row.phase is Phase.RESUMING:
        return _settle_return(row, observed, asked)
    if mine and row.phase in SAVED:
        return _SAVED
    return _by_its_parts(row, observed, asked)


def _by_its_parts(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """Settle a stop by what agent and store know; the journal may be older, or differ.

    Nobody has stopped a session that has ended: if anything may come back, the Hub must
    not forget it.
    """
    if observed.trees is None:
        return UNANSWERED
    tree = observed.tree(asked.incarnation)
    if tree is not None and not tree.frozen:
        return Action(ActionKind.END, tree)
    others = [other for other in observed.whole() if other != tree]
    if others:
        return KEEP
    if tree is not None:
        action = _settle_frozen(row, tree, observed) if _is_free(row) else KEEP
        if action is not None:
            return action
    if observed.saved is None:
        return UNANSWERED
    return _by_what_is_saved(row, observed, asked, gone=tree is None)


def _by_what_is_saved(
    row: SessionRow, observed: Observed, asked: Asked, *, gone: bool
) -> Action:
    mine = row.incarnation == asked.incarnation
    saved = phase.current(row, observed)
    taken = Action(ActionKind.TAKE, None, saved, phase=Phase.SUSPENDED)
    if saved is not None and saved.stamp > row.stamp:
        its = saved.incarnation == asked.incarnation
        its = its or (mine and saved.session == row.session != "")
        return taken if its and gone and _is_free(row) else KEEP
    if mine and saved is not None:
        return taken
    if mine and row.intent is Intent.SAVE:
        return KEEP  # behind its copy the save may be under way, and still be committed
    # Else the Hub asks about an earlier life: what it was told of this one is lost.
    there = row.phase in {*SAVED, *LIVE, Phase.RESUMING} and row.checkpoint
    known = is_accounted_for(row, asked)
    return KEEP if (there and not mine) or not known else END


def _is_free(row: SessionRow) -> bool:
    """Whether nothing is under way that would have to be over first."""
    return row.phase in LIVE | RESTS


def _settle_frozen(row: SessionRow, tree: Tree, observed: Observed) -> Action | None:
    """Settle a stop of a captured tree; None: it was set aside since."""
    if tree.state is TreeState.CAPTURING:
        return in_flight("suspend")
    if observed.saved is None:
        return UNANSWERED
    saved = observed.checkpoint(tree.checkpoint)
    if saved is None:  # as in a store that was put back: it is all there is
        return KEEP
    return phase.take_captured(row, observed, saved, tree)


def _settle_return(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """Settle a stop during a return, of which the Hub knows more than the journal."""
    tree = observed.tree(row.incarnation) if observed.trees is not None else None
    back = Action(ActionKind.TAKE, tree, phase=Phase.RUNNING)
    if asked.came_back:
        return back
    if observed.trees is None:
        return UNANSWERED
    if tree is None:
        return Action(ActionKind.GIVE_UP)
    if tree.frozen:
        return in_flight("suspend")
    return back if tree.runs else _SAVED

"""Settles a start: the reconciler's answer where the Hub is about to start a session.

It is called again after each action, until it is an answer. What runs is joined, what
is frozen is taken up, what is newer than the journal is noted; a session with a
checkpoint is never started cold. Pure.

===========  =====================================  ==================================
journal      agent, store, Hub's pointer            action
===========  =====================================  ==================================
SUSPENDING   any                                    refuse: in flight
RELEASING    any                                    as if nobody asked
RESUMING     of this very start                     return it
             of another, which runs                 join it
             of another, being captured             refuse: in flight
             of another, captured                   take that
             of another, otherwise                  give that one up
SUSPENDED    another one is to be brought back      take that
any other    a tree runs                            join it
             being captured                         refuse: in flight
             captured in what is current, or new    take it (→ RELEASING)
             captured in what was set aside         kill: that is kept
             captured, not committed                thaw
             restoring                              refuse: in flight
             holding for another start              kill: that one is over
             a newer checkpoint                     take it (→ SUSPENDED); in flight
                                                    beside a tree
RUNNING …    gone                                   take that (→ SUSPENDED, if what it
                                                    came from is kept, or STOPPED)
SUSPENDED,   unknown checkpoints                    note them
STOPPED
SUSPENDED    a doubt that no person has settled     ask its user
             its checkpoint is not there            what the Hub remembers, if newer;
                                                    else ask for the newest there is
             otherwise                              return it
STOPPED      another one is to be brought back      take that
             the Hub's pointer names one that       missing
             nobody knows
             otherwise                              cold
any of the   no answer                              SUSPENDED: return it if Hub and
last three                                          journal agree, unless a pod of it
                                                    stands there; STOPPED: cold if
                                                    nothing was ever saved; else
                                                    unanswered
===========  =====================================  ==================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import HubState, Phase, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import moment
from jupyterhub_gpu_reclaim.controlplane import phase
from jupyterhub_gpu_reclaim.controlplane.model import lineage
from jupyterhub_gpu_reclaim.controlplane.model.actions import (
    Action,
    ActionKind,
    failure_of,
)
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Failure, Tree
    from jupyterhub_gpu_reclaim.controlplane.model.asked import Asked
    from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow

#: Silences of a node where a pod of the session is.
_UNSEEN = (Reason.NODE_SILENT, Reason.NODE_UNTRUSTED)
UNANSWERED = Action(ActionKind.UNANSWERED)


def settle_start(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """Return what must be done for a start, in every phase but RELEASING.

    Args:
        row: the journal's row; a fresh row if it has none.
        observed: the answers of agent and store; ``None`` is no answer (yet).
        asked: the question.
    """
    if row.phase is Phase.SUSPENDING:
        return in_flight("suspend")
    if row.phase is Phase.RESUMING:
        return _settle_overtaken(row, observed, asked)
    if row.phase is Phase.SUSPENDED and row.bring_back:
        return Action(ActionKind.BRING_BACK)
    return _settle_trees(row, observed, asked) or _settle_saved(row, observed, asked)


def _settle_overtaken(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """Settle a start during another one, which the Hub has forgotten."""
    if row.incarnation == asked.incarnation:
        return Action(ActionKind.RETURN)  # the same question has the same answer
    if observed.trees is None:
        return UNANSWERED
    tree = observed.tree(row.incarnation)
    if tree is None or tree.state in {TreeState.HOLDING, TreeState.RESTORING}:
        return Action(ActionKind.GIVE_UP, tree)
    if tree.state is TreeState.CAPTURING:
        return in_flight("capture")
    if tree.runs:
        return Action(ActionKind.JOIN, tree)
    # Captured: a journal that was put back; the session has returned since.
    settled = observed._replace(hub=HubState.STOPPED)
    return phase.take(row, settled) or UNANSWERED


def _settle_trees(row: SessionRow, observed: Observed, asked: Asked) -> Action | None:
    """Settle a start beside trees: join what runs, take up what is frozen."""
    running = observed.running()
    if running is not None:
        return Action(ActionKind.JOIN, running)
    for tree in observed.left():
        if tree.state is TreeState.CAPTURING:
            return in_flight("capture")
        if observed.saved is None:
            continue
        if tree.state is TreeState.CAPTURED:
            return _settle_captured(row, observed, tree)
        if tree.state is TreeState.RESTORING:
            return in_flight("restore")  # the journal is older: it runs soon, or fails
        if tree.incarnation != asked.incarnation:
            # Of a start that is over: its container was started again (Docker).
            return Action(ActionKind.KILL, tree)
    return None


def _settle_captured(row: SessionRow, observed: Observed, tree: Tree) -> Action:
    saved = observed.checkpoint(tree.checkpoint)
    if saved is None:
        return Action(ActionKind.THAW, tree)
    taken = phase.take_captured(row, observed, saved, tree)
    return taken or Action(ActionKind.KILL, tree, saved)


def _settle_saved(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """Settle a start when nothing runs: the saved state counts."""
    if observed.trees is None or observed.saved is None:
        return _settle_silence(row, observed, asked)
    newer = phase.current(row, observed)
    if newer and newer.stamp > row.stamp and observed.whole():
        return in_flight("release")  # beside a tree it would only be set aside
    # A place that is held for nothing hides nothing.
    settled = observed._replace(hub=HubState.STOPPED, trees=observed.whole())
    missed = phase.take(row, settled)
    if missed is not None:
        return missed
    if row.phase is Phase.SUSPENDED:
        return _returned(row, observed, asked)
    if row.bring_back:
        return Action(ActionKind.BRING_BACK)
    known = is_accounted_for(row, asked)
    return Action(ActionKind.COLD if known else ActionKind.MISSING)


def _returned(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    doubt = _doubt(row, asked)
    if doubt is not None:
        return Action(ActionKind.ASK, failure=doubt)
    if observed.saved is not None and observed.checkpoint(row.checkpoint) is None:
        return _settle_missing(row, observed, asked)
    return Action(ActionKind.RETURN)


def _settle_silence(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """Settle a start when a part does not answer, or was not asked yet.

    A silent node does not prevent a return if Hub and journal agree on the checkpoint
    and its pod there is being deleted. But both are older if a tree was seen to run, or
    if the store has a checkpoint that the journal does not know; then what runs there
    may be newer. Both may be older, and something may run, if nobody has deleted its
    pod. Nor does a store prevent it that cannot be listed now, but was before.

    A start may be cold if both know of no checkpoint. The journal's word is good once
    it was compared with the store, for sessions that were never suspended, and if there
    is no agent at all, since the first start brings its node. A journal that has no row
    of a session that the Hub remembers was lost, or is another one.
    """
    if asked.silence is None:
        return UNANSWERED
    if row.phase is Phase.SUSPENDED:
        stands = asked.silence in _UNSEEN
        at_rest = not stands and asked.checkpoint in {"", row.checkpoint}
        trees = observed.trees is not None or at_rest
        agreed = asked.checkpoint == row.checkpoint and asked.listed
        saved = agreed if observed.saved is None else not observed.unknown()
        return _returned(row, observed, asked) if trees and saved else UNANSWERED
    there = asked.remembered or asked.silence in {*_UNSEEN, Reason.ENDING_UNSEEN}
    known = observed.trees or observed.unknown()
    if known or (there and observed.trees is None):
        return UNANSWERED  # Hub or cluster know of something; what, nobody has said
    if row.phase is not Phase.STOPPED or not is_accounted_for(row, asked):
        return UNANSWERED
    if asked.remembered and not row.since:
        return UNANSWERED
    never_saved = not row.generation and not asked.remembered
    good = asked.listed or never_saved or asked.silence is Reason.NO_AGENT
    return Action(ActionKind.COLD) if good else UNANSWERED


def _doubt(row: SessionRow, asked: Asked) -> Failure | None:
    """Return why the user must be asked before this checkpoint comes back, if so.

    A person's word, by button or command, settles it, but not one for another server
    that belongs to this one; so does a Hub that remembers the same session, and
    nothing newer of it.
    """
    asks = row.failure is not None and not row.failure.retryable
    if row.intent is Intent.RESUME and (asks or row.intent_by != SERVICE):
        return None
    infos = [each.info for each in asked.kept]
    mine = next((info for info in infos if info.id == row.checkpoint), None)
    if mine is None:
        return None
    if row.failure is not None and row.failure.code == Reason.ENDED_SINCE_SAVED.value:
        return row.failure  # it has gone on since then
    its = lineage.is_of(mine, [asked.former, asked.checkpoint])
    found = row.failure is not None and row.failure.code == Reason.SAVED_FOUND.value
    if found and not its:
        return row.failure
    # The same session may have been saved since, which nobody else knows.
    older = its and (0, 0) < asked.stamp <= mine.stamp
    return None if older or is_accounted_for(row, asked) else _older(mine)


def _settle_missing(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """Settle a return whose checkpoint is gone: another, or a person decides.

    If what the Hub remembers is not older, nobody has to choose.
    """
    shown = {each.id for each in asked.kept if not lineage.is_hidden(row, each)}
    there = [info for info in observed.saved or () if info.id in shown]
    hubs = next((info for info in there if info.id == asked.checkpoint), None)
    if hubs is not None and hubs.stamp >= row.stamp:
        return Action(ActionKind.BRING_BACK, None, hubs)
    other = hubs or (there[-1] if there else None)
    if other is None:
        lost = failure_of(Reason.CHECKPOINT_MISSING, checkpoint=row.checkpoint)
        return Action(ActionKind.ASK, failure=lost)
    asked_before = (
        row.failure is not None and row.failure.code == Reason.SAVED_OLDER.value
    )
    if asked_before and row.intent is Intent.RESUME:
        return Action(ActionKind.BRING_BACK, None, other)
    return Action(ActionKind.ASK, failure=_older(other))


def is_accounted_for(row: SessionRow, asked: Asked) -> bool:
    """Whether the journal knows what became of the checkpoint that the Hub knows.

    If it does not, the journal is older than the Hub's database.
    """
    return asked.checkpoint in {"", row.dismissed, *(each.id for each in asked.kept)}


def _older(info: CheckpointInfo) -> Failure:
    return failure_of(Reason.SAVED_OLDER, when=moment(info.created))


def in_flight(operation: str) -> Action:
    """Refuse: nothing can be said before that operation has ended."""
    busy = failure_of(Reason.OPERATION_IN_FLIGHT, operation=operation)
    return Action(ActionKind.REFUSE, failure=busy)

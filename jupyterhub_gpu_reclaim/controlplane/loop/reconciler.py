"""Reconciler: compares what a session is with what Hub and agent have of it.

It is called again after each action, until it answers "nothing". It is pure: the same
views always give the same action, so neither restarts nor earlier events matter. First
what the session is now is computed (``phase.py``), and taken into the row where that
says something else. Then, if the agent or the store is silent, nothing is done, but
that a person's order which cannot be begun is called off³; no answer of the Hub is "—".
Where the Hub is about to start or to stop the session, ``start`` and ``stop`` answer.

===========  ==========================  ===========  ================================
phase        tree (agent)                Hub          action
===========  ==========================  ===========  ================================
RUNNING,     running, napping            any          ready: policy and intents
NAPPING,     running, and a second one   running      kill³ the second if what it came
WARNED                                                from is kept, else report it³
             captured, saved nowhere     running,     thaw
                                         stopped
             holding⁵                    running,     kill
                                         stopped
             capturing, for a save point any          cancel: nobody waits for it
SUSPENDING   capturing                   any          attach to the capture
             captured, saved nowhere     any          thaw
RELEASING    captured, gone              running      ask the Hub for a stop⁶
             captured                    stopping     wait; after the limit release
             captured                    stopped¹     release
             captured, not committed     any          thaw
             captured                    running, —²  after the limit thaw
             captured                    unsettled    thaw: the Hub is checking
SUSPENDED    gone                        running      ask the Hub for a stop³
SUSPENDED,   captured, set aside         stopped      kill³
STOPPED      holding, restoring          stopped      kill³: restoring, if it is kept
                                                      what it comes from
             running, and stopped by a   stopped      kill³
             person
RESUMING     restoring                   any          attach to the restore
             holding, placed             spawning, —  restore, when it is its turn⁴
             holding, restore failed     any          give the restore up
             holding, another one runs   any          the same
             restoring                   stopped      give it up³
             holding                     stopped      give it up
===========  ==========================  ===========  ================================

¹ or spawning: the Hub has stopped it, and its user is back already.
² no answer. ³ only after this has been so for ``Settings.orphan_grace``.
⁴ up to ``Settings.gpu_wait``; then restore failed.
⁵ what came back under that init has ended with it, and somebody has started its
container again (``docker restart``): nothing answers there, and yet the Hub's poll
finds a container that runs.
⁶ with the servers that belong to it, or thaw (``decide/together.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import HubState, Phase, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.decide.gpu_queue import no_room
from jupyterhub_gpu_reclaim.controlplane.loop.start import UNANSWERED, settle_start
from jupyterhub_gpu_reclaim.controlplane.loop.stop import settle_stop
from jupyterhub_gpu_reclaim.controlplane.model.actions import (
    NOTHING,
    WAIT,
    Action,
    ActionKind,
    failure_of,
)
from jupyterhub_gpu_reclaim.controlplane.model.asked import Want
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE
from jupyterhub_gpu_reclaim.controlplane.phase import take
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.model.asked import Asked
    from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings


_ENDED = (HubState.STOPPED, HubState.SPAWNING)


def settle(
    row: SessionRow,
    observed: Observed,
    now: float,
    settings: Settings,
    asked: Asked | None = None,
) -> Action:
    """Return the one action that brings a session's three views closer together.

    Args:
        row: the journal's row; a fresh row if it has none.
        observed: the answers of agent and Hub.
        now: seconds since the epoch.
        settings: the limits.
        asked: the Hub's plan (``start``, ``stop``); None: nothing.
    """
    if asked is not None and asked.want is Want.STOP:
        return settle_stop(row, observed, asked)
    if asked is not None and row.phase is not Phase.RELEASING:
        return settle_start(row, observed, asked)
    if observed.silent:
        if asked is not None:
            return UNANSWERED
        if row.phase is Phase.RELEASING and observed.hub is HubState.RUNNING:
            return WAIT
        return _unbegun(row, observed)
    return take(row, observed) or _by_phase(row, observed, now, settings)


def _unbegun(row: SessionRow, observed: Observed) -> Action:
    """Call off what a person has ordered of a session that nobody can look at.

    Begun hours later, it would come as a surprise.
    """
    if row.phase not in LIVE or row.intent_by in {"", SERVICE}:
        return NOTHING
    reason, why = Reason.AGENT_UNREACHABLE, ""
    if observed.trees is not None and observed.saved is None:
        reason, why = Reason.STORE_UNREACHABLE, "it does not answer"
    failure = failure_of(reason, why=why)
    return Action(ActionKind.CALL_OFF, patient=True, failure=failure)


def _by_phase(
    row: SessionRow, observed: Observed, now: float, settings: Settings
) -> Action:
    match row.phase:
        case Phase.SUSPENDING:
            return _suspending(row, observed)
        case Phase.RELEASING:
            late = now - row.since > settings.release_limit
            return _releasing(row, observed, too_long=late)
        case Phase.RESUMING:
            return _resuming(row, observed, waits=settings.gpu_wait > 0)
        case Phase.SUSPENDED | Phase.STOPPED:
            return _at_rest(row, observed)
    return _live(row, observed)


def _live(row: SessionRow, observed: Observed) -> Action:
    """Settle a session that is RUNNING, NAPPING or WARNED."""
    tree = observed.tree(row.incarnation)
    if tree is None:
        ended = observed.hub is HubState.STOPPED
        return WAIT if ended and observed.left() else NOTHING
    if tree.runs:
        return _second_tree(row, observed) or Action(ActionKind.READY, tree)
    if tree.state is TreeState.CAPTURING:
        return Action(ActionKind.CANCEL, tree)
    if not observed.settled:
        return NOTHING
    if tree.state is TreeState.CAPTURED:
        return Action(ActionKind.THAW, tree)
    kills = tree.state is TreeState.HOLDING
    return Action(ActionKind.KILL, tree) if kills else NOTHING


def _second_tree(row: SessionRow, observed: Observed) -> Action | None:
    """Settle a tree beside the session's own, out of its user's reach.

    An init that holds a place for nothing is killed, and so is a second tree whose
    checkpoint is kept. Any other second tree may hold the only copy of its state: it is
    reported, and the session is left alone until a person ends one of them.
    """
    if observed.hub is HubState.SPAWNING:
        return None
    others = [tree for tree in observed.left() if tree.incarnation != row.incarnation]
    for tree in others:
        if tree.state is TreeState.HOLDING:
            return Action(ActionKind.KILL, tree, patient=True)
    for tree in others:
        if tree.runs and observed.hub is HubState.RUNNING:
            kept = observed.checkpoint(tree.checkpoint) is not None
            return Action(
                ActionKind.KILL if kept else ActionKind.REPORT, tree, patient=True
            )
    return None


def _suspending(row: SessionRow, observed: Observed) -> Action:
    tree = observed.tree(row.incarnation)
    if tree is not None and tree.state is TreeState.CAPTURED:
        return Action(ActionKind.THAW, tree)
    attaches = tree is not None and tree.state is TreeState.CAPTURING
    return Action(ActionKind.ATTACH, tree) if attaches else WAIT


def _releasing(row: SessionRow, observed: Observed, *, too_long: bool) -> Action:
    tree = observed.tree(row.incarnation)
    if tree is not None and tree.state in {TreeState.CAPTURING, TreeState.RESTORING}:
        return WAIT
    if tree is not None and observed.checkpoint(row.checkpoint) is None:
        return Action(ActionKind.THAW, tree)
    if tree is not None and observed.hub in _ENDED:
        return Action(ActionKind.RELEASE, tree)
    if observed.hub is HubState.STOPPING:
        return Action(ActionKind.RELEASE, tree) if tree and too_long else WAIT
    # A Hub that has been restarted waits for the server's answer before it takes
    # any order; a frozen tree cannot give it.
    checking = observed.hub is HubState.UNSETTLED
    if tree is not None and (too_long or checking):
        return Action(ActionKind.THAW, tree)
    ask = observed.hub is HubState.RUNNING
    return Action(ActionKind.STOP_AT_HUB, tree) if ask else WAIT


def _at_rest(row: SessionRow, observed: Observed) -> Action:
    """Settle a session that is SUSPENDED or STOPPED, or unknown to the journal."""
    if observed.hub is HubState.RUNNING:
        over = row.phase is Phase.SUSPENDED and not observed.left()
        return Action(ActionKind.STOP_AT_HUB, patient=True) if over else NOTHING
    if observed.hub is not HubState.STOPPED:
        return NOTHING
    return _processes_at_rest(row, observed) or NOTHING


def _processes_at_rest(row: SessionRow, observed: Observed) -> Action | None:
    """Settle what is left of a session at rest whose server the Hub has stopped."""
    suspended = row.phase is Phase.SUSPENDED
    for tree in observed.left():
        over = tree.state in {TreeState.CAPTURED, TreeState.HOLDING}
        if tree.state is TreeState.RESTORING:
            kept = observed.checkpoint(tree.checkpoint) is not None
            over = kept and (tree.checkpoint == row.checkpoint or not suspended)
        elif tree.runs:
            over = tree.incarnation == row.incarnation and not suspended
        if over:
            return Action(ActionKind.KILL, tree, patient=True)
    return None


def _resuming(row: SessionRow, observed: Observed, *, waits: bool) -> Action:
    tree = observed.tree(row.incarnation)
    ended = observed.hub is HubState.STOPPED
    if tree is None or tree.runs or tree.frozen:
        return Action(ActionKind.WAIT, tree)
    if tree.state is TreeState.HOLDING:
        failed = tree.failure is not None and tree.checkpoint == row.checkpoint
        retries = waits and no_room(tree.failure)
        another_runs = observed.running() is not None  # Hub and journal are both older
        if ended or another_runs or (failed and not retries):
            return Action(ActionKind.GIVE_UP, tree)
        return Action(ActionKind.RESTORE, tree) if row.placed else WAIT
    return (
        Action(ActionKind.GIVE_UP, tree, patient=True)
        if ended
        else Action(ActionKind.RESTORE, tree)
    )

"""Reconciler: compares journal, agent and Hub of a session, and returns one action.

It is called again after each action, until it answers "nothing". It is pure: the same
three views always give the same action, so neither restarts nor earlier events matter.
If the agent or the store is silent, nothing is done; no answer of the Hub is "—". Where
the Hub is about to start or to stop the session, ``start`` and ``stop`` answer.

===========  ==========================  ===========  ================================
journal      tree (agent)                Hub          action
===========  ==========================  ===========  ================================
RUNNING      running, napping⁶           any          ready: policy and intents
(NAPPING,    napping                     any          naps (RUNNING → NAPPING)
WARNED)      running                     any          wakes (NAPPING → RUNNING)
             running, and a second one   running      kill³ the second if what it came
                                                      from is kept, else report it³
             captured, its checkpoint    any          found captured (→ RELEASING)
             unknown
             captured, otherwise         running      thaw
             captured, saved nowhere     stopped      thaw
             captured, otherwise         stopped      found captured (→ RELEASING)
             capturing                   any          cancel
             holding⁹                    running,     kill
                                         stopped
             gone, another one runs,     running      adopt that one
             or is captured
             gone                        stopped      vanished; lost if its last
                                                      checkpoint, or a save point
                                                      that is not known, is kept
             gone, newer checkpoint⁵     stopped      found saved (→ SUSPENDED)
             any, unknown checkpoint     any          set it aside
SUSPENDING   capturing                   any          attach to the capture
             captured                    any          committed (→ RELEASING)
             running                     any          rolled back (→ RUNNING)
             gone, committed             any          committed (→ RELEASING)
             gone, not committed         any          vanished, or lost; found saved⁵
RELEASING    captured, gone              running      ask the Hub for a stop⁸
             gone, another one runs      running      released (→ SUSPENDED)
             captured                    stopping     wait; after the limit release
             captured                    stopped¹     release
             gone                        stopped¹     released (→ SUSPENDED)
             captured, not committed     any          thaw (→ RUNNING)
             captured                    running, —²  after the limit thaw (→ RUNNING)
             captured                    unsettled    thaw (→ RUNNING): it is checking
             running                     any          thawed (→ RUNNING)
SUSPENDED,   running, capturing⁷,        running      adopt (→ RUNNING)
STOPPED,     captured⁷
or no row    gone                        running      ask the Hub for a stop³, if
                                                      SUSPENDED
             captured                    stopped      release, if SUSPENDED in that
             captured, newer checkpoint⁵ stopped      found captured (→ RELEASING)
             captured, set aside since   stopped      kill³
             captured, saved nowhere     stopped      thaw; it is reported then
             holding, restoring          stopped      kill³: restoring, if it is kept
                                                      what it comes from
             running as the row's own    stopped      adopt³ if SUSPENDED, unless its
                                                      pod ends or its user has asked
                                                      for a start; kill³ if STOPPED
             running, otherwise          stopped      leave it, report it
             gone, newer checkpoint⁵     stopped      found saved (→ SUSPENDED)
             gone, unknown checkpoint    stopped      set it aside
RESUMING     restoring                   any          attach to the restore
             capturing, captured         running,     restored (→ RUNNING)
                                         stopped
             holding, placed             spawning, —  restore
             holding, restore failed     any          restore failed (→ SUSPENDED)
             holding, another one runs   any          the same
             holding, no GPU memory      spawning, —  restore, when it is its turn⁴
             running                     running,     restored (→ RUNNING)
                                         stopped
             restoring                   stopped      kill³ (→ SUSPENDED)
             holding                     stopped      kill (→ SUSPENDED)
             gone, another one runs      running      adopt that one
             gone                        stopped,     restore failed (→ SUSPENDED)
                                         running³
===========  ==========================  ===========  ================================

¹ or spawning: the Hub has stopped it, and its user is back already.
² no answer. ³ only after this has been so for ``Settings.orphan_grace``.
⁴ up to ``Settings.gpu_wait``; then restore failed.
⁵ than all that the journal knows (``lineage.py``): the journal is older than the store.
⁶ everywhere below, a tree that naps counts as one that runs: its server answers, it
takes the same orders, and it is its agent that wakes it when somebody uses it.
⁷ STOPPED: if it is current, or new.
⁸ with the servers that belong to it, or thaw (``decide/together.py``).
⁹ what came back under that init has ended with it, and somebody has started its
container again (``docker restart``): nothing answers there, and yet the Hub's poll
finds a container that runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import HubState, Phase, Tree, TreeState
from jupyterhub_gpu_reclaim.controlplane.checkpoints import lineage
from jupyterhub_gpu_reclaim.controlplane.flows.gpu_queue import no_room
from jupyterhub_gpu_reclaim.controlplane.loop.start import (
    UNANSWERED,
    settle_end,
    settle_start,
)
from jupyterhub_gpu_reclaim.controlplane.loop.stop import settle_stop
from jupyterhub_gpu_reclaim.controlplane.model.actions import (
    NOTHING,
    WAIT,
    Action,
    ActionKind,
)
from jupyterhub_gpu_reclaim.controlplane.model.asked import Want
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent

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
        return NOTHING
    return _by_phase(row, observed, now, settings)


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
        return _without_tree(row, observed)
    if tree.state is TreeState.CAPTURING:
        return Action(ActionKind.CANCEL, tree)
    if tree.state is TreeState.CAPTURED:
        # A journal of before that capture knows of no order to take back. What is
        # saved is noted first: thawed, it may end before it is.
        missed = observed.missed(tree.checkpoint)
        saved = observed.checkpoint(tree.checkpoint)
        if saved and (missed or observed.hub is HubState.STOPPED):
            return Action(ActionKind.FOUND_CAPTURED, tree, saved)
        settled = observed.hub in {HubState.RUNNING, HubState.STOPPED}
        return Action(ActionKind.THAW, tree) if settled else NOTHING
    if tree.state is TreeState.HOLDING:
        settled = observed.hub in {HubState.RUNNING, HubState.STOPPED}
        return Action(ActionKind.KILL, tree) if settled else NOTHING
    if not tree.runs:
        return NOTHING
    if observed.unknown():
        # Before it is suspended: the next generation comes after all that there are.
        return Action(ActionKind.SET_ASIDE)
    return (
        _nap_missed(row, tree)
        or _second_tree(row, observed)
        or Action(ActionKind.READY, tree)
    )


def _nap_missed(row: SessionRow, tree: Tree) -> Action | None:
    """Return a nap's begin or end that the journal missed; a warning hides naps."""
    if tree.state is TreeState.NAPPING and row.phase is Phase.RUNNING:
        return Action(ActionKind.NAPS, tree)
    if tree.state is TreeState.RUNNING and row.phase is Phase.NAPPING:
        return Action(ActionKind.WAKES, tree)
    return None


def _without_tree(row: SessionRow, observed: Observed) -> Action:
    """Settle a live session whose tree is gone."""
    other = _unknown_to_the_journal(observed)
    if other is not None:
        return Action(ActionKind.ADOPT, other)
    return _ended(row, observed) if observed.hub is HubState.STOPPED else NOTHING


def _unknown_to_the_journal(observed: Observed) -> Tree | None:
    """Return a tree that runs for the Hub, if the journal has none that does.

    A frozen one counts if the journal was put back; once it is known, it is thawed.
    """
    runs = observed.hub is HubState.RUNNING
    return (observed.running() or observed.frozen()) if runs else None


def _ended(row: SessionRow, observed: Observed) -> Action:
    """Settle a session whose programs have ended without a known reason."""
    missed = _take_missed(row, observed)
    if missed is not None:
        return missed
    if any(tree.state is TreeState.RESTORING for tree in observed.left()):
        return WAIT  # it may be the session, or fail to be
    return settle_end(row, observed)


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
    committed = observed.checkpoint(tree.checkpoint if tree else row.attempt)
    if tree is None:
        if committed is not None:
            return Action(ActionKind.COMMITTED, None, committed)
        return _ended(row, observed)
    if tree.state is TreeState.CAPTURING:
        return Action(ActionKind.ATTACH, tree)
    if tree.state is TreeState.CAPTURED:
        if committed is None:
            return Action(ActionKind.THAW, tree)
        return Action(ActionKind.COMMITTED, tree, committed)
    return Action(ActionKind.ROLLED_BACK, tree)


def _releasing(row: SessionRow, observed: Observed, *, too_long: bool) -> Action:
    tree = observed.tree(row.incarnation)
    if tree is not None and tree.runs:
        return Action(ActionKind.ROLLED_BACK, tree)
    if tree is not None and tree.state in {TreeState.CAPTURING, TreeState.RESTORING}:
        return WAIT
    if tree is not None and observed.checkpoint(row.checkpoint) is None:
        return Action(ActionKind.THAW, tree)
    if observed.hub in _ENDED:
        return (
            Action(ActionKind.RELEASED)
            if tree is None
            else Action(ActionKind.RELEASE, tree)
        )
    if observed.hub is HubState.STOPPING:
        return Action(ActionKind.RELEASE, tree) if tree and too_long else WAIT
    if tree is None and observed.left():
        # A journal that was put back: the session has returned since.
        return Action(ActionKind.RELEASED)
    # A Hub that has been restarted waits for the server's answer before it takes
    # any order; a frozen tree cannot give it.
    checking = observed.hub is HubState.UNSETTLED
    if tree is not None and (too_long or checking):
        return Action(ActionKind.THAW, tree)
    ask = observed.hub is HubState.RUNNING
    return Action(ActionKind.STOP_AT_HUB, tree) if ask else WAIT


def _at_rest(row: SessionRow, observed: Observed) -> Action:
    """Settle a session that is SUSPENDED or STOPPED, or unknown to the journal."""
    tree = _unknown_to_the_journal(observed)
    if tree is not None:
        # Captured, and saved nowhere, as in a store that was put back: all there is.
        captured = tree.state is TreeState.CAPTURED
        only = captured and observed.checkpoint(tree.checkpoint) is None
        # What stands frozen and was set aside is nobody's session.
        frozen = row.phase is Phase.STOPPED and tree.frozen and not only
        over = frozen and not lineage.takes_over(row, observed, tree)
        return NOTHING if over else Action(ActionKind.ADOPT, tree)
    if observed.hub is HubState.RUNNING:
        over = row.phase is Phase.SUSPENDED and not observed.left()
        return Action(ActionKind.STOP_AT_HUB, patient=True) if over else NOTHING
    if observed.hub is not HubState.STOPPED:
        return NOTHING
    action = _processes_at_rest(row, observed) or _take_missed(row, observed)
    if action is not None:
        return action
    # What comes from a checkpoint may still fail to: it is judged when that is over.
    settled = observed.unknown() and not observed.whole()
    return Action(ActionKind.SET_ASIDE) if settled else NOTHING


def _take_missed(row: SessionRow, observed: Observed) -> Action | None:
    """Take up a checkpoint that is newer than all that the journal knows."""
    missed = None if observed.left() else lineage.missed(row, observed)
    return Action(ActionKind.FOUND_SAVED, None, missed) if missed else None


def _processes_at_rest(row: SessionRow, observed: Observed) -> Action | None:
    """Settle processes of a session at rest whose server the Hub has stopped.

    A session that the journal has never heard of may have been used for hours: a
    journal that was put back. The row's own tree was stopped, or runs from a resume
    that was given up: it may have been used since, and if not, it falls idle.
    """
    suspended = row.phase is Phase.SUSPENDED
    for tree in observed.left():
        kept = observed.checkpoint(tree.checkpoint)
        same = tree.checkpoint == row.checkpoint
        if tree.state is TreeState.CAPTURED:
            if kept is None:
                # Whoever was to thaw it is forgotten: a journal that was lost.
                return Action(ActionKind.THAW, tree)
            if suspended and same:
                return Action(ActionKind.RELEASE, tree)
            if lineage.takes_over(row, observed, tree):
                return Action(ActionKind.FOUND_CAPTURED, tree, kept)
            return Action(ActionKind.KILL, tree, patient=True)
        own = tree.runs and tree.incarnation == row.incarnation
        if own and suspended:
            over = tree.ending or row.intent is Intent.RESUME
            return NOTHING if over else Action(ActionKind.ADOPT, tree, patient=True)
        restoring = tree.state is TreeState.RESTORING and kept is not None
        over = (restoring and same) if suspended else (restoring or own)
        if over or tree.state is TreeState.HOLDING:
            return Action(ActionKind.KILL, tree, patient=True)
    running = observed.running()
    return Action(ActionKind.REPORT, running, patient=True) if running else None


def _resuming(row: SessionRow, observed: Observed, *, waits: bool) -> Action:
    tree = observed.tree(row.incarnation)
    ended = observed.hub is HubState.STOPPED
    if tree is None:
        other = _unknown_to_the_journal(observed)
        if other is not None:
            return Action(ActionKind.ADOPT, other)
        # A start that was called off may leave a Hub that takes it for running.
        if ended or observed.hub is HubState.RUNNING:
            return Action(ActionKind.GIVE_UP, patient=not ended)
        return WAIT
    if tree.state is TreeState.HOLDING:
        failed = tree.failure is not None and tree.checkpoint == row.checkpoint
        retries = waits and no_room(tree.failure)
        another_runs = observed.running() is not None  # Hub and journal are both older
        if ended or another_runs or (failed and not retries):
            return Action(ActionKind.GIVE_UP, tree)
        return Action(ActionKind.RESTORE, tree) if row.placed else WAIT
    if tree.state is TreeState.RESTORING:
        return (
            Action(ActionKind.GIVE_UP, tree, patient=True)
            if ended
            else Action(ActionKind.RESTORE, tree)
        )
    # Captured: a journal that was put back; the session has returned since.
    back = tree.runs or tree.frozen
    return _restored(observed, tree) if back else WAIT


def _restored(observed: Observed, tree: Tree) -> Action:
    """Settle a tree that is back: RUNNING once the Hub has finished its start.

    A Hub that was killed meanwhile does not know of the tree: it runs all the same, the
    next start adopts it, and if no start comes it falls idle and is suspended again.
    """
    done = observed.hub in {HubState.RUNNING, HubState.STOPPED}
    return Action(ActionKind.RESTORED if done else ActionKind.WAIT, tree)

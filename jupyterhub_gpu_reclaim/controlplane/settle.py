"""Reconciler: compares what a session is with what Hub and agent have of it.

It is called again after each action, until it answers "nothing". It is pure: the same
views always give the same action, so neither restarts nor earlier events matter. First
what the session is now is computed (``phase.py``), and taken into the row where that
says something else. Then, if the agent or the store is silent, nothing is done, but
that a person's order which cannot be begun is called off³; no answer of the Hub is "—".
Where the Hub is about to start or to stop the session, the other two tables answer.

===========  ==========================  ===========  ================================
phase        tree (agent)                Hub          action
===========  ==========================  ===========  ================================
RUNNING,     running, napping            any          ready: policy and intents
NAPPING      running, and a second one   running      kill³ the second if what it came
                                                      from is kept, else report it³
             captured, saved nowhere     running,     thaw
                                         stopped
             holding⁵                    running,     kill
                                         stopped
             capturing, for a save point any          thaw: nobody waits for it
SUSPENDING   capturing                   any          follow it
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
RESUMING     restoring                   any          follow it
             holding, placed             spawning, —  the same, when it is its turn⁴
             holding, restore failed     any          kill: it is given up
             holding, another one runs   any          the same
             restoring                   stopped      kill³
             holding                     stopped      kill
===========  ==========================  ===========  ================================

¹ or spawning: the Hub has stopped it, and its user is back already.
² no answer. ³ only after this has been so for ``Settings.orphan_grace``.
⁴ up to ``Settings.gpu_wait``; then restore failed.
⁵ what came back under that init has ended with it, and somebody has started its
container again (``docker restart``): nothing answers there, and yet the Hub's poll
finds a container that runs.
⁶ with the servers that belong to it, or thaw (``decide/together.py``).

Where the Hub is about to start it: what runs is joined, what is frozen is taken up; a
session with a checkpoint is never started cold.

===========  =====================================  ==================================
journal      agent, store, Hub's pointer            action
===========  =====================================  ==================================
SUSPENDING   any                                    refuse: in flight
RELEASING    any                                    as if nobody asked
RESUMING     of this very start                     return it
             of another, which runs                 join it
             of another, being captured             refuse: in flight
             of another, captured                   take that
             of another, otherwise                  kill that one
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

Where the Hub is about to end it: what is saved is released, a stop by a person is a
real one, and nothing is ended or forgotten of which it is not known that nothing may
come back.

===========  =====================================  ==================================
journal      agent, store                           action
===========  =====================================  ==================================
SUSPENDING¹  any                                    refuse: in flight
RESUMING¹    it has come back                       take that (→ RUNNING)
             it is frozen again                     refuse: in flight
             gone                                   kill: it is over (→ SUSPENDED)
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

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.models import HubState, Phase, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import moment
from jupyterhub_gpu_reclaim.controlplane import phase, retention
from jupyterhub_gpu_reclaim.controlplane.session import (
    LIVE,
    RESTS,
    SAVED,
    Intent,
    failure_of,
)
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Failure, Tree
    from jupyterhub_gpu_reclaim.controlplane.phase import Observed
    from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, SessionRow
    from jupyterhub_gpu_reclaim.controlplane.settings import Settings


class ActionKind(StrEnum):
    """Kinds of actions; a worker does them, or whoever was asked about the session."""

    NOTHING = "nothing"
    WAIT = "wait"  #: look again soon: something is under way
    READY = "ready"
    TAKE = "take what is so"
    FOLLOW = "follow what is under way"  #: the capture, or the restore, which it begins
    CALL_OFF = "call the order off"  #: it cannot be begun
    STOP_AT_HUB = "ask the Hub for a stop"
    RELEASE = "release"
    THAW = "thaw"  #: a capture under way is cancelled
    KILL = "kill"  #: a restore under way is given up
    REPORT = "report"
    BRING_BACK = "bring another one back"
    UNANSWERED = "a part must answer first"


class AnswerKind(StrEnum):
    """Kinds that end a question."""

    MISSING = "take what is missing"
    COLD = "start cold"
    RETURN = "bring it back"
    JOIN = "take up what runs"
    ASK = "ask its user"
    REFUSE = "refuse"
    END = "end it"
    SAVED = "it is saved"
    KEEP = "keep it"


class Action(NamedTuple):
    kind: ActionKind | AnswerKind
    tree: Tree | None = None
    saved: CheckpointInfo | None = None
    #: only if the same action has been due for ``orphan_grace``
    patient: bool = False
    failure: Failure | None = None  #: failure to tell with it
    phase: Phase | None = None  #: of ``TAKE``: what the session is now


class Want(StrEnum):
    START = "start"
    STOP = "stop"


class Asked(NamedTuple):
    want: Want
    #: the one about to begin (for a start), or to be ended (for a stop)
    incarnation: str
    checkpoint: str = ""  #: checkpoint that the Hub remembers
    stamp: tuple[int, int] = (0, 0)  #: stamp of that checkpoint; zeros: not known
    #: session that the Hub remembers there, or an incarnation of it; empty: none
    former: str = ""
    remembered: bool = False  #: whether the Hub remembers a session there
    kept: tuple[CheckpointRow, ...] = ()  #: the checkpoints that the journal has
    listed: bool = False  #: whether the journal knows what the store last had of it
    came_back: bool = False  #: whether the restore under way has ended well
    silence: Reason | None = None  #: why a part did not answer; None: all did


NOTHING = Action(ActionKind.NOTHING)
WAIT = Action(ActionKind.WAIT)
UNANSWERED = Action(ActionKind.UNANSWERED)
END = Action(AnswerKind.END)
KEEP = Action(AnswerKind.KEEP)
_SAVED = Action(AnswerKind.SAVED)
_ENDED = (HubState.STOPPED, HubState.SPAWNING)
#: Silences of a node where a pod of the session is.
_UNSEEN = (Reason.NODE_SILENT, Reason.NODE_UNTRUSTED)


def settle(
    row: SessionRow,
    observed: Observed,
    now: float,
    settings: Settings,
    asked: Asked | None = None,
) -> Action:
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
    return _take(row, observed) or _by_phase(row, observed, now, settings)


def _take(row: SessionRow, seen: Observed) -> Action | None:
    state = phase.derive(row, seen)
    if state is None or not phase.differs(row, state, seen):
        return None
    kind = ActionKind.TAKE
    return Action(kind, state.tree, state.saved, state.patient, phase=state.phase)


def _take_captured(
    row: SessionRow, seen: Observed, saved: CheckpointInfo, tree: Tree
) -> Action | None:
    if not phase.is_taken(row, seen, saved, tree):
        return None
    return Action(ActionKind.TAKE, tree, saved, phase=Phase.RELEASING)


def _unbegun(row: SessionRow, observed: Observed) -> Action:
    """Call off what a person has ordered: begun hours later, it would surprise."""
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
    tree = observed.tree(row.incarnation)
    if tree is None:
        ended = observed.hub is HubState.STOPPED
        return WAIT if ended and observed.left() else NOTHING
    if tree.runs:
        return _second_tree(row, observed) or Action(ActionKind.READY, tree)
    if tree.state is TreeState.CAPTURING or (tree.frozen and observed.settled):
        return Action(ActionKind.THAW, tree)
    kills = tree.state is TreeState.HOLDING and observed.settled
    return Action(ActionKind.KILL, tree) if kills else NOTHING


def _second_tree(row: SessionRow, observed: Observed) -> Action | None:
    """Settle a tree beside the session's own, out of its user's reach.

    An init that holds a place for nothing is killed, and so is a second tree whose
    checkpoint is kept. Any other may hold the only copy of its state: it is reported.
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
    return Action(ActionKind.FOLLOW, tree) if attaches else WAIT


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
    if observed.hub is HubState.RUNNING:
        over = row.phase is Phase.SUSPENDED and not observed.left()
        return Action(ActionKind.STOP_AT_HUB, patient=True) if over else NOTHING
    if observed.hub is not HubState.STOPPED:
        return NOTHING
    return _processes_at_rest(row, observed) or NOTHING


def _processes_at_rest(row: SessionRow, observed: Observed) -> Action | None:
    suspended = row.phase is Phase.SUSPENDED
    for tree in observed.left():
        kept = observed.checkpoint(tree.checkpoint) is not None
        over = tree.state is TreeState.HOLDING
        if tree.state is TreeState.CAPTURED:
            over = kept
        elif tree.state is TreeState.RESTORING:
            over = kept and (tree.checkpoint == row.checkpoint or not suspended)
        elif tree.runs:
            over = tree.incarnation == row.incarnation and not suspended
        if over:
            return Action(ActionKind.KILL, tree, patient=True)
    return None


def no_room(failure: Failure | None) -> bool:
    """Whether a resume failed for lack of GPU memory, which others may release."""
    return failure is not None and failure.code == Reason.GPU_MEMORY.value


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
            return Action(ActionKind.KILL, tree)
        return Action(ActionKind.FOLLOW, tree) if row.placed else WAIT
    if ended:
        return Action(ActionKind.KILL, tree, patient=True)
    return Action(ActionKind.FOLLOW, tree)


# --- where the Hub is about to start it
def settle_start(row: SessionRow, observed: Observed, asked: Asked) -> Action:
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
        return Action(AnswerKind.RETURN)  # the same question has the same answer
    if observed.trees is None:
        return UNANSWERED
    tree = observed.tree(row.incarnation)
    if tree is None or tree.state in {TreeState.HOLDING, TreeState.RESTORING}:
        return Action(ActionKind.KILL, tree)
    if tree.state is TreeState.CAPTURING:
        return in_flight("capture")
    if tree.runs:
        return Action(AnswerKind.JOIN, tree)
    # Captured: a journal that was put back; the session has returned since.
    settled = observed._replace(hub=HubState.STOPPED)
    return _take(row, settled) or UNANSWERED


def _settle_trees(row: SessionRow, observed: Observed, asked: Asked) -> Action | None:
    running = observed.running()
    if running is not None:
        return Action(AnswerKind.JOIN, running)
    for tree in observed.left():
        if tree.state is TreeState.CAPTURING:
            return in_flight("capture")
        if observed.saved is None:
            continue
        if tree.state is TreeState.CAPTURED:
            saved = observed.checkpoint(tree.checkpoint)
            if saved is None:
                return Action(ActionKind.THAW, tree)
            taken = _take_captured(row, observed, saved, tree)
            return taken or Action(ActionKind.KILL, tree, saved)
        if tree.state is TreeState.RESTORING:
            return in_flight("restore")  # the journal is older: it runs soon, or fails
        if tree.incarnation != asked.incarnation:
            # Of a start that is over: its container was started again (Docker).
            return Action(ActionKind.KILL, tree)
    return None


def _settle_saved(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    if observed.trees is None or observed.saved is None:
        return _settle_silence(row, observed, asked)
    newer = phase.current(row, observed)
    if newer and newer.stamp > row.stamp and observed.whole():
        return in_flight("release")  # beside a tree it would only be set aside
    # A place that is held for nothing hides nothing.
    settled = observed._replace(hub=HubState.STOPPED, trees=observed.whole())
    missed = _take(row, settled)
    if missed is not None:
        return missed
    if row.phase is Phase.SUSPENDED:
        return _returned(row, observed, asked)
    if row.bring_back:
        return Action(ActionKind.BRING_BACK)
    known = is_accounted_for(row, asked)
    return Action(AnswerKind.COLD if known else AnswerKind.MISSING)


def _returned(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    doubt = _doubt(row, asked)
    if doubt is not None:
        return Action(AnswerKind.ASK, failure=doubt)
    if observed.saved is not None and observed.checkpoint(row.checkpoint) is None:
        return _settle_missing(row, observed, asked)
    return Action(AnswerKind.RETURN)


def _settle_silence(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """Settle a start when a part does not answer, or was not asked yet.

    A silent node does not prevent a return if Hub and journal agree on the checkpoint
    and its pod there is being deleted; but both are older if a tree was seen to run, or
    if the store has a checkpoint that the journal does not know.

    A start may be cold if both know of no checkpoint. The journal's word is good once
    it was compared with the store, for sessions that were never suspended, and if there
    is no agent at all, since the first start brings its node.
    """
    if asked.silence is None:
        return UNANSWERED
    if row.phase is Phase.SUSPENDED:
        stands = asked.silence in _UNSEEN
        at_rest = not stands and asked.checkpoint in {"", row.checkpoint}
        trees = observed.trees is not None or at_rest
        agreed = asked.checkpoint == row.checkpoint and asked.listed
        saved = agreed if observed.saved is None else phase.is_current(row, observed)
        return _returned(row, observed, asked) if trees and saved else UNANSWERED
    there = asked.remembered or asked.silence in {*_UNSEEN, Reason.ENDING_UNSEEN}
    known = observed.trees or not phase.is_current(row, observed)
    if known or (there and observed.trees is None):
        return UNANSWERED  # Hub or cluster know of something; what, nobody has said
    if row.phase is not Phase.STOPPED or not is_accounted_for(row, asked):
        return UNANSWERED
    if asked.remembered and not row.since:
        return UNANSWERED
    never_saved = row.stamp == (0, 0) and not asked.remembered
    good = asked.listed or never_saved or asked.silence is Reason.NO_AGENT
    return Action(AnswerKind.COLD) if good else UNANSWERED


def _doubt(row: SessionRow, asked: Asked) -> Failure | None:
    """Return why the user must be asked before this checkpoint comes back, if so.

    A person's word settles it, but not one for another server that belongs to it; so
    does a Hub that remembers the same session, and nothing newer of it.
    """
    if row.intent is Intent.RESUME and (row.asks or row.intent_by != SERVICE):
        return None
    infos = [each.info for each in asked.kept]
    mine = next((info for info in infos if info.id == row.checkpoint), None)
    if mine is None:
        return None
    if row.tells(Reason.ENDED_SINCE_SAVED):
        return row.failure  # it has gone on since then
    its = retention.is_of(mine, [asked.former, asked.checkpoint])
    if row.tells(Reason.SAVED_FOUND) and not its:
        return row.failure
    # The same session may have been saved since, which nobody else knows.
    older = its and (0, 0) < asked.stamp <= mine.stamp
    return None if older or is_accounted_for(row, asked) else _older(mine)


def _settle_missing(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """Settle a return whose checkpoint is gone: another, or a person decides."""
    shown = {each.id for each in asked.kept if not retention.is_hidden(row, each)}
    there = [info for info in observed.saved or () if info.id in shown]
    hubs = next((info for info in there if info.id == asked.checkpoint), None)
    if hubs is not None and hubs.stamp >= row.stamp:
        return Action(ActionKind.BRING_BACK, None, hubs)
    other = hubs or (there[-1] if there else None)
    if other is None:
        lost = failure_of(Reason.CHECKPOINT_MISSING, checkpoint=row.checkpoint)
        return Action(AnswerKind.ASK, failure=lost)
    if row.tells(Reason.SAVED_OLDER) and row.intent is Intent.RESUME:
        return Action(ActionKind.BRING_BACK, None, other)
    return Action(AnswerKind.ASK, failure=_older(other))


def is_accounted_for(row: SessionRow, asked: Asked) -> bool:
    """Whether what the Hub remembers is kept, or was decided about: by its stamp."""
    kept = asked.checkpoint in {"", *(each.id for each in asked.kept)}
    return kept or (0, 0) < asked.stamp <= row.stamp


def _older(info: CheckpointInfo) -> Failure:
    return failure_of(Reason.SAVED_OLDER, when=moment(info.created))


def in_flight(operation: str) -> Action:
    busy = failure_of(Reason.OPERATION_IN_FLIGHT, operation=operation)
    return Action(AnswerKind.REFUSE, failure=busy)


# --- where the Hub is about to end it
def settle_stop(row: SessionRow, observed: Observed, asked: Asked) -> Action:
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

    If anything may come back, the Hub must not forget it.
    """
    if observed.trees is None:
        return UNANSWERED
    tree = observed.tree(asked.incarnation)
    if tree is not None and not tree.frozen:
        return Action(AnswerKind.END, tree)
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
    return _take_captured(row, observed, saved, tree)


def _settle_return(row: SessionRow, observed: Observed, asked: Asked) -> Action:
    """Settle a stop during a return, of which the Hub knows more than the journal."""
    tree = observed.tree(row.incarnation) if observed.trees is not None else None
    back = Action(ActionKind.TAKE, tree, phase=Phase.RUNNING)
    if asked.came_back:
        return back
    if observed.trees is None:
        return UNANSWERED
    if tree is None:
        return Action(ActionKind.KILL)
    if tree.frozen:
        return in_flight("suspend")
    return back if tree.runs else _SAVED

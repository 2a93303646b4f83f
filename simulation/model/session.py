"""One session with Hub, agent and store as a small model.

What the service decides is the product's own: ``settle`` of the reconciler, for starts
and stops as well, the table of phases, ``lineage``. What it acts on is written here in
a few rules: trees that are captured, released and restored, a store, a Hub that stops
and starts, a person, and faults: each part is killed at any moment, orders come late or
never, captures and restores fail, and the journal is put back to an earlier one. Time
is left out: what is done only after a while happens when nothing else can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    Failure,
    HubState,
    Phase,
    SessionKey,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.models import Tree as AgentTree
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.checkpoints import lineage
from jupyterhub_gpu_reclaim.controlplane.loop.reconciler import settle
from jupyterhub_gpu_reclaim.controlplane.model.actions import (
    ANSWERS,
    Action,
    ActionKind,
)
from jupyterhub_gpu_reclaim.controlplane.model.asked import Asked, Want
from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed
from jupyterhub_gpu_reclaim.controlplane.model.phases import (
    LIVE,
    SAVED,
    SessionEvent,
    advance,
)
from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Decide = Callable[..., Action]

KEY = SessionKey("ann")
SETTINGS = Settings()


class Broken(AssertionError):
    """A law is broken; the text says which."""


class Tree(NamedTuple):
    """The processes of one incarnation, as their agent knows them."""

    inc: int
    state: TreeState
    value: int = 0  #: what they hold: how often the person has worked in them
    origin: int = 0  #: checkpoint that they were restored from
    saving: int = 0  #: checkpoint that they are, or were, captured as
    term: int = 0  #: of the order to do so
    failed: bool = False  #: the restore under this init
    naps: bool = False  #: its GPU programs are stopped; also while it is captured
    stuck: bool = False  #: it has something with which no return succeeds

    @property
    def runs(self) -> bool:
        """Whether its server runs."""
        return self.state in {TreeState.RUNNING, TreeState.NAPPING}

    def going_on(self) -> Tree:
        """The same after a capture that was undone: it naps again if it did."""
        state = TreeState.NAPPING if self.naps else TreeState.RUNNING
        return self._replace(state=state)

    def awake(self) -> Tree:
        """The same without its nap."""
        return self._replace(state=TreeState.RUNNING, naps=False)


class Saved(NamedTuple):
    """A committed checkpoint."""

    id: int  #: also its number: those of one service rise
    inc: int
    term: int
    parent: int
    value: int


class Row(NamedTuple):
    """The journal's row of the session."""

    phase: Phase
    inc: int = 0
    term: int = 0  #: with the number: the highest stamp
    number: int = 0
    checkpoint: int = 0
    attempt: int = 0
    wanted: bool = False  #: a person has ordered a suspend
    order: str = ""  #: or to nap, or to wake
    placed: bool = False
    stop_asked: bool = False
    known: frozenset[int] = frozenset()


class State(NamedTuple):
    """Everything at one moment."""

    row: Row
    trees: tuple[Tree, ...]
    store: tuple[Saved, ...] = ()
    hub: HubState = HubState.RUNNING
    hub_inc: int = 1
    joined: bool = False  #: the start under way has made no place of its own
    service: bool = True
    agent: bool = True
    term: int = 1  #: of the service; one with an earlier journal rises above it
    #: copies of both databases, made at one moment: the journal, the Hub's
    backup: tuple[Row, HubState, int] | None = None
    late: tuple[str, int, int, int] | None = None  #: an order on its way
    insisted: bool = False  #: a stop of ours that came late waits for another capture
    truth: int = 0  #: what the person has last seen
    next: int = 2  #: number of the next incarnation or checkpoint
    faults: int = 0  #: that may still happen; likewise the next three
    suspends: int = 0
    visits: int = 0
    works: int = 0
    naps: int = 0  #: orders to nap that may still be given
    changes: int = 0  #: likewise of what keeps its programs from coming back

    def tree(self, inc: int) -> Tree | None:
        """The tree of that incarnation, if anything is left of it."""
        return next((tree for tree in self.trees if tree.inc == inc), None)

    def saved(self, checkpoint: int) -> Saved | None:
        """That checkpoint, if it is committed."""
        return next((one for one in self.store if one.id == checkpoint), None)

    def but(self, tree: Tree) -> State:
        """With that tree changed."""
        trees = (tree if one.inc == tree.inc else one for one in self.trees)
        return self._replace(trees=tuple(trees))

    def without(self, inc: int, law: str) -> State:
        """With a tree ended; what it holds must be in the store, if it is the newest.

        Raises:
            Broken: it is not.
        """
        tree = self.tree(inc)
        if tree is None:
            return self
        only = tree.state not in {TreeState.HOLDING, TreeState.RESTORING}
        kept = any(one.value >= tree.value for one in self.store)
        if only and tree.value >= self.truth and not kept:
            raise Broken(law)
        return self._replace(trees=tuple(t for t in self.trees if t.inc != inc))

    def to(self, event: SessionEvent, **changes: Any) -> State:
        """With the journal moved on by the product's own table."""
        row = self.row._replace(**changes)
        phase = advance(self.row.phase, event, saved=bool(row.checkpoint))
        done = phase not in LIVE or event in {SessionEvent.NAPS, SessionEvent.WAKES}
        order = "" if done else row.order
        return self._replace(row=row._replace(phase=phase, order=order))

    def deleted(self, checkpoint: int) -> State:
        """Without that checkpoint."""
        return self._replace(store=tuple(s for s in self.store if s.id != checkpoint))


#: A step: what happened, and what is so then.
Step = tuple[str, State]


# --- the service ----------------------------------------------------------------------


def service(
    state: State, decide: Decide = settle, *, patient: bool = False
) -> Iterator[Step]:
    """What the service's worker does next, by the product's own decision.

    Args:
        state: now.
        decide: the reconciler.
        patient: whether this has been so for long.
    """
    if not state.service:
        yield "the service starts", state._replace(service=True)
        return
    if state.late is not None and state.agent and state.late[3] < state.term:
        state = state._replace(late=None)  # the agent has heard of a higher one
    row = _row(state.row)
    now = SETTINGS.release_limit + 1 if patient else 0.0
    action = decide(row, _observed(state), now, SETTINGS)
    if action.patient and not patient:
        return
    after = _act(state, action)
    if after is not None and after != state:
        yield f"service: {state.row.phase}: {action.kind}", after


def _act(state: State, action: Action) -> State | None:
    """The state after an action of the service's."""
    row = state.row
    inc = int(action.tree.incarnation) if action.tree else 0
    saved = state.saved(int(action.saved.id)) if action.saved else None
    match action.kind:
        case ActionKind.READY if row.order == "wake":
            return _moved(state, inc)
        case ActionKind.READY if row.wanted and _may_begin(state):
            return _suspend(state)
        case ActionKind.READY if row.order == "nap" and _may_begin(state):
            return _moved(state, inc)
        case ActionKind.COMMITTED if saved:
            return _committed(state, saved)
        case ActionKind.ROLLED_BACK if row.phase is Phase.SUSPENDING:
            return state.to(SessionEvent.CAPTURE_FAILED, attempt=0, wanted=False)
        case ActionKind.ROLLED_BACK:
            return _thawed(state)
        case ActionKind.CANCEL:
            return _thaw(state, inc)
        case ActionKind.THAW:
            after = _thaw(state, inc)
            return _thawed(after) if row.phase is Phase.RELEASING else after
        case ActionKind.STOP_AT_HUB:
            row = row._replace(stop_asked=True)
            return state._replace(hub=HubState.STOPPING, row=row)
        case ActionKind.RELEASE:
            return _release(state, inc, row.checkpoint)
        case ActionKind.RELEASED:
            return state.to(SessionEvent.RELEASED, stop_asked=False, placed=False)
        case ActionKind.RESTORE:
            return _restore(state, inc, row.checkpoint)
        case ActionKind.RESTORED:
            return state.to(SessionEvent.RESTORED, placed=False, stop_asked=False)
        case ActionKind.GIVE_UP:
            after = state.without(inc, "a restore that was given up was the only state")
            return after.to(SessionEvent.RESTORE_FAILED, placed=False)
        case ActionKind.KILL:
            return state.without(inc, "law 9: a tree with the newest state is killed")
        case _:
            return _taken_note(state, action, inc, saved)


def _taken_note(
    state: State, action: Action, inc: int, saved: Saved | None
) -> State | None:
    """The state after the service has noted what happened outside."""
    match action.kind:
        case ActionKind.NAPS:
            return state.to(SessionEvent.NAPS)
        case ActionKind.WAKES:
            return state.to(SessionEvent.WAKES)
        case ActionKind.ADOPT:
            return _adopted(state, inc)
        case ActionKind.VANISHED:
            return state.to(SessionEvent.VANISHED, checkpoint=0, attempt=0)
        case ActionKind.LOST if saved:
            return state.to(
                SessionEvent.LOST,
                checkpoint=saved.id,
                attempt=0,
                **_noted(state.row, saved),
            )
        case ActionKind.FOUND_CAPTURED if saved:
            return state.to(
                SessionEvent.FOUND_CAPTURED,
                inc=saved.inc,
                checkpoint=saved.id,
                attempt=0,
                **_noted(state.row, saved),
            )
        case ActionKind.FOUND_SAVED | ActionKind.SET_ASIDE:
            return _found_saved(state)
    return None


def _may_begin(state: State) -> bool:
    if state.hub is HubState.STOPPING:
        return state.row.stop_asked
    return state.hub in {HubState.RUNNING, HubState.STOPPED}


def _moved(state: State, inc: int) -> State:
    """The agent carries an order to nap or to wake out; the journal follows later."""
    tree, row = state.tree(inc), state.row
    naps = row.order == "nap"
    if tree is None or tree.naps is naps:
        return state._replace(row=row._replace(order=""))
    return state.but(tree._replace(naps=naps).going_on())


def _suspend(state: State) -> State:
    after = state.to(SessionEvent.SUSPEND, attempt=state.next, wanted=False)
    order = ("capture", state.row.inc, state.next, state.term)
    return deliver(after._replace(next=state.next + 1), order)


def _committed(state: State, saved: Saved) -> State:
    return state.to(
        SessionEvent.COMMITTED,
        checkpoint=saved.id,
        attempt=0,
        **_noted(state.row, saved),
    )


def _noted(row: Row, *saved: Saved) -> dict[str, Any]:
    """What the journal knows once it has taken these into account."""
    stamps = [(row.term, row.number), *((one.term, one.id) for one in saved)]
    term, number = max(stamps)
    known = row.known.union(one.id for one in saved)
    return {"known": known, "term": term, "number": number}


def _thaw(state: State, inc: int) -> State:
    """The agent lets a tree go on; what it was captured as is deleted."""
    tree = state.tree(inc)
    if tree is None or tree.state not in {TreeState.CAPTURING, TreeState.CAPTURED}:
        return state
    return state.but(tree.going_on()).deleted(tree.saving)


def _thawed(state: State) -> State:
    return state.deleted(state.row.checkpoint).to(
        SessionEvent.THAWED, checkpoint=0, stop_asked=True
    )


def _adopted(state: State, inc: int) -> State:
    tree = state.tree(inc)
    origin = tree.origin if tree is not None else 0
    noted = origin == state.row.checkpoint or origin not in state.row.known
    return state.to(
        SessionEvent.FOUND_RUNNING,
        inc=inc,
        checkpoint=origin if noted else 0,
        attempt=0,
        placed=False,
    )


def _found_saved(state: State) -> State:
    """The newest checkpoint that the journal missed is the session."""
    noted = _noted(state.row, *state.store)
    observed = _observed(state)
    newest = None if observed.whole() else lineage.missed(_row(state.row), observed)
    if newest is None:
        return state._replace(row=state.row._replace(**noted))
    return state.to(
        SessionEvent.FOUND_SAVED,
        inc=int(newest.incarnation),
        checkpoint=int(newest.id),
        attempt=0,
        wanted=False,
        placed=False,
        **noted,
    )


# --- the agent ------------------------------------------------------------------------


def deliver(state: State, order: tuple[str, int, int, int]) -> State:
    """An order reaches the agent, if that is there; it may refuse."""
    what, inc, checkpoint, term = order
    tree = state.tree(inc)
    if not state.agent or tree is None:
        return state
    if what == "restore":
        return _restore(state, inc, checkpoint)
    if not tree.runs or tree.saving == checkpoint:
        return state
    return state.but(
        tree._replace(state=TreeState.CAPTURING, saving=checkpoint, term=term)
    )


def _restore(state: State, inc: int, checkpoint: int) -> State:
    tree = state.tree(inc)
    if tree is None or tree.state is not TreeState.HOLDING:
        return state
    there = state.saved(checkpoint)
    leased = any(
        one.origin == checkpoint and one.state is not TreeState.HOLDING
        for one in state.trees
    )
    if there is None or leased:
        return state.but(tree._replace(failed=True, origin=checkpoint))
    return state.but(
        tree._replace(state=TreeState.RESTORING, origin=checkpoint, value=there.value)
    )


def _release(state: State, inc: int, checkpoint: int) -> State:
    """End a captured tree; the agent refuses where nothing is committed."""
    tree = state.tree(inc)
    if tree is None or tree.state is not TreeState.CAPTURED:
        return state
    if state.saved(checkpoint) is None or tree.saving != checkpoint:
        return state
    return state.without(inc, "law 1: released, and what it held is not saved")


def agent(state: State) -> Iterator[Step]:
    """What the agent does by itself, and how it settles what a former one left."""
    if not state.agent:
        yield "the agent starts", _recovered(state)._replace(agent=True)
        return
    for tree in state.trees:
        if tree.state is TreeState.CAPTURING and tree.stuck:
            yield f"{tree.inc} would not come back", state.but(tree.going_on())
        elif tree.state is TreeState.CAPTURING:
            made = Saved(tree.saving, tree.inc, tree.term, tree.origin, tree.value)
            after = state.but(tree._replace(state=TreeState.CAPTURED))
            yield (
                f"{tree.inc} is saved as {made.id}",
                after._replace(store=(*state.store, made)),
            )
        elif tree.state is TreeState.RESTORING:
            yield (
                f"{tree.inc} is back from {tree.origin}",
                state.but(tree._replace(state=TreeState.RUNNING)),
            )


def _recovered(state: State) -> State:
    """Captures are taken as committed or undone, restores are undone."""
    trees = []
    for tree in state.trees:
        if tree.state is TreeState.CAPTURING:
            done = state.saved(tree.saving) is not None
            kept = tree._replace(state=TreeState.CAPTURED)
            trees.append(kept if done else tree.going_on())
        elif tree.state is TreeState.RESTORING:
            trees.append(tree._replace(state=TreeState.HOLDING, failed=True))
        else:
            trees.append(tree)
    return state._replace(trees=tuple(trees))


# --- the Hub --------------------------------------------------------------------------


def hub(
    state: State, decide: Decide = settle, *, patient: bool = False
) -> Iterator[Step]:
    """What the Hub does by itself: ends of starts and stops, and of its own check.

    Args:
        state: now.
        decide: the reconciler.
        patient: whether it waits no longer.
    """
    mine = state.tree(state.hub_inc)
    if state.hub is HubState.STOPPING and state.service and state.agent:
        after = _stop_plan(state, decide)
        if after is not None:
            yield "the Hub stops the server", after
    elif state.hub is HubState.UNSETTLED:
        if mine is None or mine.state is TreeState.HOLDING:
            after = state._replace(hub=HubState.STOPPED)
            if mine is None and state.service and state.agent:
                after = _stop_plan(state, decide) or after
            yield "the Hub finds no server", after
        elif mine.runs:
            yield "the Hub finds its server", state._replace(hub=HubState.RUNNING)
        elif patient:
            yield from _gives_up(state, mine)
    elif state.hub is HubState.SPAWNING and state.service:
        yield from _late(state, mine) if patient else _spawn(state, mine)


def _gives_up(state: State, mine: Tree) -> Iterator[Step]:
    """A Hub that gets no answer stops the server, which nobody has asked for."""
    stopped = state._replace(hub=HubState.STOPPED)
    if state.row.inc == mine.inc and state.row.phase in SAVED and state.agent:
        stopped = _release(stopped, mine.inc, state.row.checkpoint)
    yield "the Hub gives its check up", stopped


def _spawn(state: State, mine: Tree | None) -> Iterator[Step]:
    row = state.row
    resuming = row.phase is Phase.RESUMING and row.inc == state.hub_inc
    if mine is None and resuming:
        new = Tree(state.hub_inc, TreeState.HOLDING)
        yield "a place is made", state._replace(trees=(*state.trees, new))
    elif mine is None:
        yield "the start has failed", state._replace(hub=HubState.STOPPED)
    elif mine.runs and (state.joined or row.inc == mine.inc):
        if mine.value < state.truth:
            raise Broken("law 9: an older state is shown as the session")
        if state.joined or row.phase not in SAVED:
            yield "the server answers", state._replace(hub=HubState.RUNNING)
    elif resuming and not row.placed:
        yield "the place is reported", state._replace(row=row._replace(placed=True))


def _late(state: State, mine: Tree | None) -> Iterator[Step]:
    """A start that takes too long: the Hub ends what it has placed."""
    stopped = state._replace(hub=HubState.STOPPED)
    frozen = {TreeState.CAPTURING, TreeState.CAPTURED}
    if mine is not None and (state.joined or mine.state in frozen):
        yield "the start fails", stopped
    elif mine is not None:
        law = "law 9: killed after a start that took too long"
        yield "the start takes too long", stopped.without(mine.inc, law)


def _stop_plan(state: State, decide: Decide) -> State | None:
    """The service's answer to a stop, carried out; None: it is not known yet."""
    row, mine = state.row, state.tree(state.hub_inc)
    if mine is not None and row.inc == mine.inc:
        frozen = mine.state is TreeState.CAPTURED  # which the journal does not know
        if row.phase is Phase.SUSPENDING:
            # It is called off, or waited for.
            called_off = mine.state is TreeState.CAPTURING and not state.insisted
            return _thaw(state, mine.inc) if called_off else None
        if row.phase in LIVE and row.stop_asked and not frozen:
            return _insist(state)
    asked = Asked(Want.STOP, str(state.hub_inc), listed=True)
    action, state = _asked(state, asked, decide)
    done = state._replace(hub=HubState.STOPPED, insisted=False)
    mine = state.tree(state.hub_inc)
    match action.kind:
        case ActionKind.KEEP | ActionKind.REFUSE:
            return done  # its programs are kept
        case ActionKind.SAVED if mine is not None:
            after = _release(done, mine.inc, state.row.checkpoint)
            return after if after.tree(mine.inc) is None else None
        case ActionKind.SAVED:
            return done
        case ActionKind.END:
            after = done.without(
                state.hub_inc, "law 1: stopped, and what it held is not saved"
            )
            if after.trees or any(one.value >= state.truth for one in after.store):
                raise Broken("law 4: the Hub forgets what may come back")
            ours = state.row.inc == state.hub_inc and state.row.phase in LIVE
            return after.to(SessionEvent.STOPPED, checkpoint=0) if ours else after
    return None


def _insist(state: State) -> State | None:
    """Our stop came so late that the session runs again: it is saved once more."""
    row = state.row
    if not state.insisted:
        return state._replace(row=row._replace(wanted=True), insisted=True)
    if row.wanted:
        return None
    # It could not be saved; its programs are kept.
    return state._replace(hub=HubState.STOPPED, insisted=False)


def _asked(state: State, asked: Asked, decide: Decide) -> tuple[Action, State]:
    """The product's answer to a question, after all that it has done before it."""
    while True:
        seen = _observed(state._replace(hub=HubState.SPAWNING))
        action = decide(_row(state.row), seen, 0.0, SETTINGS, asked)
        if action.kind in {*ANSWERS, ActionKind.UNANSWERED, ActionKind.WAIT}:
            return action, state
        after = _act(state, action)
        if after is None or after == state:
            raise Broken(f"asked for a {asked.want}, it {action.kind} without end")
        state = after


# --- a person, and faults -------------------------------------------------------------


def person(state: State, decide: Decide = settle) -> Iterator[Step]:
    """What a person does: work, order a suspend, open the page."""
    row, mine = state.row, state.tree(state.hub_inc)
    seen = state.hub is HubState.RUNNING and mine is not None
    if seen and mine and mine.runs and state.works:
        # What is sent to one that naps wakes it, whoever else is there.
        after = state.but(mine._replace(value=mine.value + 1).awake())
        truth = max(state.truth, mine.value + 1)
        yield "somebody works", after._replace(truth=truth, works=state.works - 1)
    if seen and mine and mine.runs and state.changes:
        after = state.but(mine._replace(stuck=not mine.stuck))
        how = "can come back again" if mine.stuck else "cannot come back"
        yield f"a program {how}", after._replace(changes=state.changes - 1)
    if row.phase in LIVE and not row.wanted and state.service and state.suspends:
        wanted = state._replace(row=row._replace(wanted=True))
        yield "a suspend is ordered", wanted._replace(suspends=state.suspends - 1)
    if row.phase is Phase.RUNNING and state.service and state.naps:
        nap = state._replace(row=row._replace(order="nap"), naps=state.naps - 1)
        yield "a nap is ordered", nap
    if row.phase is Phase.NAPPING and state.service and row.order != "wake":
        yield "a wake is ordered", state._replace(row=row._replace(order="wake"))
    if state.hub is HubState.STOPPED and state.visits:
        opened = _start_plan(state._replace(visits=state.visits - 1), decide)
        if opened is not None:
            yield "somebody opens the page", opened


def _start_plan(state: State, decide: Decide) -> State | None:
    """The Hub asks how to start; None: refused for now."""
    if not (state.service and state.agent):
        return None
    asked = Asked(Want.START, str(state.next), remembered=True, listed=True)
    action, state = _asked(state, asked, decide)
    row = state.row
    match action.kind:
        case ActionKind.COLD:
            raise Broken("law 4: started cold, though its state was never given up")
        case ActionKind.JOIN if action.tree is not None:
            inc = int(action.tree.incarnation)
            same = row.phase in {*LIVE, Phase.RESUMING} and inc == row.inc
            after = state if same else _adopted(state, inc)
            return after._replace(hub=HubState.SPAWNING, hub_inc=inc, joined=True)
        case ActionKind.RETURN if state.saved(row.checkpoint) is not None:
            started = state.to(SessionEvent.RESTORE, inc=state.next, placed=False)
            return started._replace(
                hub=HubState.SPAWNING,
                hub_inc=state.next,
                joined=False,
                next=state.next + 1,
            )
    return state  # refused, with the reason


def faults(state: State) -> Iterator[Step]:
    """What may go wrong; each costs one of the faults that are left."""
    if not state.faults:
        return
    less = state._replace(faults=state.faults - 1)
    if state.service:
        yield "FAULT: the service is killed", less._replace(service=False)
    if state.agent:
        yield "FAULT: the agent is killed", less._replace(agent=False)
    yield "FAULT: the Hub is killed", less._replace(hub=_restarted(state.hub))
    if state.row.order == "nap":
        yield "FAULT: a nap fails", less._replace(row=state.row._replace(order=""))
    lost = Row(Phase.STOPPED)
    if state.row != lost:
        gone = less._replace(row=lost, term=state.term + 1)
        yield "FAULT: the journal is lost", gone
    if state.backup is None:
        copies = (state.row, state.hub, state.hub_inc)
        yield "the databases are copied", state._replace(backup=copies)
    else:
        yield from _put_back(state, less, *state.backup)
    for tree in state.trees:
        if tree.state is TreeState.CAPTURING:
            yield "FAULT: a capture fails", less.but(tree.going_on())
            order = ("capture", tree.inc, tree.saving, tree.term)
            never = tree._replace(saving=0).going_on()
            if state.late is None:
                yield "FAULT: the order is late", less.but(never)._replace(late=order)
        elif tree.state is TreeState.RESTORING:
            undone = tree._replace(state=TreeState.HOLDING, failed=True)
            yield "FAULT: a restore fails", less.but(undone)


def _put_back(
    state: State, less: State, row: Row, hub: HubState, inc: int
) -> Iterator[Step]:
    """The journal, the Hub's database, or both, as they were when they were copied."""
    journal = less._replace(row=row, term=state.term + 1)
    if row != state.row:
        yield "FAULT: the journal is put back", journal
    if (hub, inc) != (state.hub, state.hub_inc):
        for how, after in (("Hub's database is", less), ("databases are", journal)):
            hubs = after._replace(hub=_restarted(hub), hub_inc=inc)
            yield f"FAULT: the {how} put back", hubs


def _restarted(hub: HubState) -> HubState:
    """What a Hub that was killed believes when it is back."""
    down = hub in {HubState.SPAWNING, HubState.STOPPED}
    return HubState.STOPPED if down else HubState.UNSETTLED


# --- as the product sees it -----------------------------------------------------------


def _row(row: Row) -> SessionRow:
    return SessionRow(
        key=KEY,
        phase=row.phase,
        incarnation=str(row.inc),
        term=row.term,
        generation=_generation(row.term, row.number),
        checkpoint=str(row.checkpoint or ""),
        attempt=str(row.attempt or ""),
        placed=row.placed,
    )


def _generation(term: int, number: int) -> int:
    """Those of later services are lower here: nothing may go by them alone."""
    return number - 1000 * term


def _observed(state: State) -> Observed:
    saved = tuple(
        CheckpointInfo(
            id=str(one.id),
            key=KEY,
            incarnation=str(one.inc),
            term=one.term,
            generation=_generation(one.term, one.id),
            created=0.0,
            logical_bytes=0,
            stored_bytes=0,
            parent=str(one.parent or ""),
        )
        for one in sorted(state.store, key=lambda one: (one.term, one.id))
    )
    known = frozenset(map(str, state.row.known))
    if not state.agent:
        return Observed(None, None, state.hub, known)
    return Observed(tuple(map(_seen, state.trees)), saved, state.hub, known)


def _seen(tree: Tree) -> AgentTree:
    busy = tree.state in {TreeState.CAPTURING, TreeState.CAPTURED}
    failure = None
    if tree.failed:
        failure = Failure(code=Reason.RESTORE_FAILED.value, message="")
    return AgentTree(
        incarnation=str(tree.inc),
        key=KEY,
        state=tree.state,
        init_pid=1,
        checkpoint=str((tree.saving if busy else tree.origin) or ""),
        failure=failure,
    )


def start(
    *,
    faults: int,
    suspends: int = 2,
    visits: int = 2,
    works: int = 1,
    naps: int = 0,
    changes: int = 0,
    stuck: bool = False,
) -> State:
    """A session that runs, and what may still happen to it."""
    return State(
        Row(Phase.RUNNING, inc=1),
        (Tree(1, TreeState.RUNNING, stuck=stuck),),
        changes=changes,
        faults=faults,
        suspends=suspends,
        visits=visits,
        works=works,
        naps=naps,
    )

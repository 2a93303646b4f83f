"""One session with Hub, agent and store as a small model.

What the service decides is the product's own: ``settle`` of the reconciler, for starts
and stops as well, the table of phases, ``lineage``. What it acts on is written here in
a few rules: trees that are captured, released and restored, a store, a Hub that stops
and starts, a person, and faults: each part is killed at any moment, orders come late or
never, captures and restores fail, and the journal is put back to an earlier one. A
start may allow further kinds of faults (``KINDS``); whose it is, the product's own
rules say (``accounts``). Time is left out: what is done only after a while happens when
nothing else can.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jupyterhub_gpu_reclaim.common.errors import StoreError, Unreachable
from jupyterhub_gpu_reclaim.common.models import (
    Aside,
    CheckpointInfo,
    Failure,
    HubState,
    Mark,
    Phase,
    SessionKey,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.models import Tree as AgentTree
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.term import Term
from jupyterhub_gpu_reclaim.controlplane import phase, retention, taking
from jupyterhub_gpu_reclaim.controlplane.phase import Observed
from jupyterhub_gpu_reclaim.controlplane.plans import Answer, Planner
from jupyterhub_gpu_reclaim.controlplane.session import (
    LIVE,
    SAVED,
    CheckpointRow,
    Intent,
    Keeping,
    SessionEvent,
    SessionRow,
    advance,
)
from jupyterhub_gpu_reclaim.controlplane.settings import Settings
from jupyterhub_gpu_reclaim.controlplane.settle import (
    Action,
    ActionKind,
    AnswerKind,
    Asked,
    Want,
    settle,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jupyterhub_gpu_reclaim.controlplane.deletions import DeletionOrder

    Decide = Callable[..., Action]

KEY = SessionKey("ann")
SETTINGS = Settings()

#: Further kinds of faults, which a start of the model may allow:
ORDERS = "orders"  #: those to end, release, or thaw a tree come late as well
AWAY = "away"  #: the store does not answer: there is no list, not an empty one
STORE = "store"  #: the store is put back to an earlier moment
NODE = "node"  #: its node does not answer, and others do
ALONE = "alone"  #: its agent is the only one, and starts are asked for without it
ACCOUNTS = "accounts"  #: another account gets the name, and nobody has said so
DELETED = "deleted"  #: the same after the user was deleted, with all that was its
RENAMED = "renamed"  #: the user gets another name
RECORDS = "records"  #: the agent's state folder is lost
ENDS = "ends"  #: the programs of a session that has a save point end by themselves
_SILENT = frozenset({AWAY, NODE, ALONE})  # where a part may not answer
KINDS = frozenset(
    {ORDERS, AWAY, STORE, NODE, ALONE, ACCOUNTS, DELETED, RENAMED, RECORDS, ENDS}
)


class Broken(AssertionError):
    """A law is broken; the text says which."""


class Saved(NamedTuple):
    id: int  #: also its number: those of one service rise
    inc: int
    term: int
    parent: int
    value: int
    account: int = 1
    goes_on: bool = False  #: a save point: what was saved has gone on


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
    account: int = 1
    stuck: bool = False  #: it has something with which no return succeeds
    copy: Saved | None = None  #: a save point that is being stored behind it
    kept: bool = False  #: its origin is a save point of its own

    @property
    def runs(self) -> bool:
        return self.state in {TreeState.RUNNING, TreeState.NAPPING}

    def going_on(self) -> Tree:
        """The same after a capture that was undone: it naps again if it did."""
        state = TreeState.NAPPING if self.naps else TreeState.RUNNING
        return self._replace(state=state)

    def awake(self) -> Tree:
        """The same without its nap; what is still stored of it is called off."""
        return self._replace(state=TreeState.RUNNING, naps=False, copy=None)


class Row(NamedTuple):
    phase: Phase
    inc: int = 0
    term: int = 0  #: with the number: the highest stamp
    number: int = 0
    checkpoint: int = 0
    attempt: int = 0
    wanted: bool = False  #: a person has ordered a suspend
    order: str = ""  #: or to nap, to wake, or for a save point
    placed: bool = False
    stop_asked: bool = False
    known: frozenset[Saved] = frozenset()
    doubt: str = ""  #: code of the question to its user
    word: bool = False  #: its user's, that it is to come back
    account: int = 0  #: 0: whoever comes
    session: int = 1  #: that of the account with that number
    claimed: bool = False
    hidden: frozenset[int] = frozenset()  #: a former account's, set apart
    doomed: frozenset[int] = frozenset()
    deletion: DeletionOrder | None = None


class State(NamedTuple):
    row: Row
    trees: tuple[Tree, ...]
    store: tuple[Saved, ...] = ()
    hub: HubState = HubState.RUNNING
    hub_inc: int = 1
    hub_saved: int = 0  #: checkpoint that the Hub remembers
    joined: bool = False  #: the start under way has made no place of its own
    service: bool = True
    agent: bool = True
    silent: bool = False  #: its node does not answer, whatever goes on there
    heard: int = 1  #: highest term that the agent has seen
    mounted: bool = True  #: the store is there
    #: checkpoints that it had when this service last saw its list; None: it has not
    listed: frozenset[int] | None = frozenset()
    #: incarnations whose end this service has ordered, without an answer
    ending: frozenset[int] = frozenset()
    term: int = 1  #: of the service; one with an earlier journal rises above it
    #: copies of both databases, made at one moment: the journal, the Hub's
    backup: tuple[Row, HubState, int, int] | None = None
    copy: tuple[Saved, ...] | None = None  #: of the store
    gone: bool = False  #: what the person has last seen is, and nobody has said so
    ended: bool = False  #: its programs have, by themselves
    late: tuple[str, int, int, int] | None = None  #: an order on its way
    insisted: bool = False  #: a stop of ours that came late waits for another capture
    owner: int = 1  #: account that has the name
    former: int = -1  #: what the account has last seen that had it before
    truth: int = 0  #: what the person has last seen
    next: int = 2  #: number of the next incarnation or checkpoint
    faults: int = 0  #: that may still happen; likewise the next three
    suspends: int = 0
    visits: int = 0
    works: int = 0
    naps: int = 0  #: orders to nap that may still be given
    saves: int = 0  #: likewise for save points
    changes: int = 0  #: likewise of what keeps its programs from coming back
    kinds: frozenset[str] = frozenset()  #: of faults, beside the usual ones

    @property
    def answers(self) -> bool:
        return self.agent and not self.silent

    def tree(self, inc: int) -> Tree | None:
        return next((tree for tree in self.trees if tree.inc == inc), None)

    def saved(self, checkpoint: int) -> Saved | None:
        return next((one for one in self.store if one.id == checkpoint), None)

    def but(self, tree: Tree) -> State:
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
        mine = [one for one in self.store if one.account == tree.account]
        kept = any(one.value >= tree.value for one in mine)
        newest = self.truth if tree.account == self.owner else max(self.former, 0)
        if self.former < 0 and tree.account != self.owner:
            kept = True  # that user was deleted, with all that was its
        if only and tree.value >= newest and not kept:
            raise Broken(law)
        return self._replace(trees=tuple(t for t in self.trees if t.inc != inc))

    def to(self, event: SessionEvent, **changes: Any) -> State:
        """With the journal moved on by the product's own table."""
        row = self.row._replace(**{"doubt": "", "word": False, **changes})
        phase = advance(self.row.phase, event, saved=bool(row.checkpoint))
        done = phase not in LIVE or event in {SessionEvent.NAPS, SessionEvent.WAKES}
        order = "" if done else row.order
        return self._replace(row=row._replace(phase=phase, order=order))

    def deleted(self, checkpoint: int) -> State:
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
        yield "the service starts", state._replace(service=True, term=state.term + 1)
        return
    if ORDERS in state.kinds and state.late is not None:
        other = state._replace(term=state.term + 1, ending=frozenset())
        if state.late[3] == state.term:
            yield "another service takes over", other
    before, state = state, _seen_in_store(_heard(state))
    if state.kinds & _SILENT and (store := _saved_of(state)) is not None:
        state = state._replace(listed=frozenset(one.id for one in store))
    if state != before:
        yield "the service looks", state
    if state.row.deletion is not None and state.answers and state.mounted:
        yield "what was deleted is ended", accounts.carried_out(state)
    row = _row(state.row)
    now = SETTINGS.release_limit + 1 if patient else 0.0
    action = decide(row, _observed(state), now, SETTINGS)
    if action.patient and not patient:
        return
    after = _act(state, action)
    if after is not None and after != state:
        yield f"service: {state.row.phase}: {action.kind}", after
        if ORDERS in state.kinds and state.faults and state.late is None:
            yield from _held_up(state, action)


def _heard(state: State) -> State:
    """The service asks the agent, which knows its term then.

    An order of a former service that is still on its way is refused from now on.
    """
    if not state.answers:
        return state
    heard = max(state.heard, state.term)
    late = state.late
    if late is not None and _is_former(late[3], heard):
        late = None
    return state._replace(heard=heard, late=late)


def _seen_in_store(state: State) -> State:
    """What the store has gets its rows."""
    row = state.row
    known = row.known.union(_living(state))
    return state._replace(row=row._replace(known=known))


def _is_former(term: int, heard: int) -> bool:
    """Whether an order of that term is refused by who has seen the other."""
    if not heard:
        return False
    one, other = (Term(number=each, holder="one") for each in (term, heard))
    return one.is_before(other)


#: What the agent is told for each action that ends a tree, or takes its capture back.
_ORDERS: dict[str, str] = {
    ActionKind.KILL: "kill",
    ActionKind.RELEASE: "release",
    ActionKind.THAW: "thaw",
}


def _held_up(state: State, action: Action) -> Iterator[Step]:
    """The order for that action has no answer, and comes later, or never."""
    what = _ORDERS.get(action.kind)
    if what is None or action.tree is None:
        return
    inc = int(action.tree.incarnation)
    ending = state.ending | {inc} if what == "kill" else state.ending
    yield (
        f"FAULT: the order to {what} {inc} is late",
        state._replace(
            faults=state.faults - 1,
            late=(what, inc, state.row.checkpoint, state.term),
            ending=ending,
        ),
    )


def _act(state: State, action: Action) -> State | None:
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
        case ActionKind.READY if row.order == "save" and _may_begin(state):
            return _save(state, inc)
        case ActionKind.THAW:
            after = _thaw(state, inc)
            tree = after.tree(inc)
            done = tree is None or tree.state is not TreeState.CAPTURED
            return _thawed(after) if done and row.phase is Phase.RELEASING else after
        case ActionKind.STOP_AT_HUB:
            row = row._replace(stop_asked=True)
            return state._replace(hub=HubState.STOPPING, row=row)
        case ActionKind.RELEASE:
            return _release(state, inc, row.checkpoint)
        case ActionKind.FOLLOW if row.phase is Phase.RESUMING:
            return _restore(state, inc, row.checkpoint)
        case ActionKind.KILL if row.phase is Phase.RESUMING:
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
        case ActionKind.TAKE if action.phase in LIVE:
            return _taken_running(state, action.phase, inc)
        case ActionKind.TAKE:
            return _taken(state, action.phase, inc, saved)
        case ActionKind.BRING_BACK if saved:
            return state.to(
                SessionEvent.BROUGHT_BACK,
                **_as(saved),
                word=True,
            )
    return None


def _taken_running(state: State, now: Phase, inc: int) -> State | None:
    """The state after the service has found that a session runs."""
    row, tree = state.row, state.tree(inc)
    if inc != row.inc or tree is None:
        return _adopted(state, inc)
    match row.phase:
        case Phase.SUSPENDING:
            return state.to(SessionEvent.CAPTURE_FAILED, attempt=0, wanted=False)
        case Phase.RELEASING:
            return _thawed(state)
        case Phase.RESUMING:
            return state.to(SessionEvent.RESTORED, placed=False)
        case Phase.SUSPENDED | Phase.STOPPED:
            return _adopted(state, inc)
        case Phase.NAPPING if now is Phase.RUNNING:
            return state.to(SessionEvent.WAKES)
        case Phase.RUNNING if now is Phase.NAPPING:
            return state.to(SessionEvent.NAPS)
    return _way_back(state, tree)


def _taken(
    state: State, now: Phase | None, inc: int, saved: Saved | None
) -> State | None:
    """The state after the service has found that it does not run, or not for long."""
    row = state.row
    if now is Phase.SUSPENDING and (tree := state.tree(inc)) is not None:
        return state.to(SessionEvent.SUSPEND, attempt=tree.saving, wanted=False)
    if now is Phase.STOPPED:
        return state.to(SessionEvent.VANISHED, checkpoint=0, attempt=0)
    if row.phase is Phase.RELEASING and now is Phase.SUSPENDED:
        return state.to(SessionEvent.RELEASED, placed=False)
    if row.phase is Phase.RESUMING and now is Phase.SUSPENDED:
        return state.to(SessionEvent.RESTORE_FAILED, placed=False)
    if saved is None:
        return None
    if now is Phase.RELEASING and row.phase is Phase.SUSPENDING:
        return _committed(state, saved)
    if now is Phase.RELEASING:
        return state.to(
            SessionEvent.COMMITTED,
            **_as(saved),
            **_noted(row, saved),
        )
    if (saved.term, saved.id) > (row.term, row.number):
        return _found_saved(state, saved)
    point = saved.inc == row.inc
    return state.to(
        SessionEvent.LOST,
        checkpoint=saved.id,
        attempt=0,
        doubt=Reason.ENDED_SINCE_SAVED.value if point else "",
        **_noted(row, saved),
    )


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
    return state.but(tree._replace(naps=naps, copy=None).going_on())


def _save(state: State, inc: int) -> State:
    """The agent has copied it; it goes on, and the copy is stored behind it."""
    tree, row = state.tree(inc), state.row
    if tree is None or tree.copy is not None:
        return state
    made = Saved(
        state.next, inc, state.term, tree.origin, tree.value, tree.account, goes_on=True
    )
    if tree.stuck:  # it would not come back
        return state._replace(row=row._replace(order=""), next=state.next + 1)
    return state.but(tree._replace(copy=made))._replace(next=state.next + 1)


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
    known = row.known.union(saved)
    return {"known": known, "term": term, "number": number}


def _way_back(state: State, tree: Tree) -> State:
    """What a session that runs goes back to; it may be a save point of it."""
    row, noted = state.row, _noted(state.row, *_living(state))
    back = taking.way_back(_row(row), _seen(tree), _observed(state), 0.0)
    if "checkpoint" in back:
        order = "" if row.order == "save" else row.order
        noted |= {"checkpoint": int(back["checkpoint"]), "order": order}
    return state._replace(row=row._replace(**noted))


def _thaw(state: State, inc: int) -> State:
    """The agent lets a tree go on; what it was captured as is deleted."""
    tree = state.tree(inc)
    if tree is None or tree.state not in {TreeState.CAPTURING, TreeState.CAPTURED}:
        return state
    if tree.state is TreeState.CAPTURED and not state.mounted:
        return state  # its checkpoint could not be dropped
    return state.but(tree.going_on()).deleted(tree.saving)


def _thawed(state: State) -> State:
    back = retention.back_again(_row(state.row), _kept(state.row))
    return state.deleted(state.row.checkpoint).to(
        SessionEvent.THAWED, checkpoint=int(back or 0), stop_asked=True
    )


def _adopted(state: State, inc: int) -> State:
    tree = state.tree(inc)
    origin = tree.origin if tree is not None else 0
    noted = origin == state.row.checkpoint
    return state._replace(ending=state.ending - {inc}).to(
        SessionEvent.FOUND_RUNNING,
        inc=inc,
        session=tree.account if tree is not None else 1,
        account=tree.account if tree is not None else 1,
        checkpoint=origin if noted else 0,
        attempt=0,
        placed=False,
    )


def _as(saved: Saved) -> dict[str, Any]:
    """What a row says of a session that is what was saved as that."""
    return {
        "inc": saved.inc,
        "session": saved.account,
        "account": saved.account,
        "checkpoint": saved.id,
        "attempt": 0,
    }


def _living(state: State) -> list[Saved]:
    there = {each.id for each in _observed(state).saved or ()}
    return [one for one in state.store if str(one.id) in there]


def _found_saved(state: State, newest: Saved) -> State:
    """The newest checkpoint, which the journal has missed, is the session."""
    remembered = [f"s{state.owner}", str(state.hub_inc)] if state.hub_inc else []
    info = next(i for i in _observed(state).saved or () if i.id == str(newest.id))
    doubt = "" if retention.is_of(info, remembered) else Reason.SAVED_FOUND.value
    if newest.goes_on:
        doubt = Reason.ENDED_SINCE_SAVED.value
    return state.to(
        SessionEvent.FOUND_SAVED,
        **_as(newest),
        wanted=False,
        placed=False,
        doubt=doubt,
        **_noted(state.row, *_living(state)),
    )


# --- the agent ------------------------------------------------------------------------


def deliver(state: State, order: tuple[str, int, int, int]) -> State:
    """An order reaches the agent, if that is there; it may refuse."""
    what, inc, checkpoint, term = order
    tree = state.tree(inc)
    if not state.answers or tree is None or _is_former(term, state.heard):
        return state
    state = state._replace(heard=max(state.heard, term))
    match what:
        case "restore":
            return _restore(state, inc, checkpoint)
        case "kill":
            return state.without(inc, "law 9: a late order ends the newest state")
        case "release":
            return _release(state, inc, checkpoint)
        case "thaw":
            return _thaw(state, inc)
    newer = any((one.term, one.id) > (term, checkpoint) for one in _own(state, tree))
    if not tree.runs or tree.saving == checkpoint or newer:
        return state
    captured = tree._replace(copy=None, saving=checkpoint, term=term)
    return state.but(captured._replace(state=TreeState.CAPTURING))


def _own(state: State, tree: Tree) -> list[Saved]:
    """What its session is saved as; nothing where the store does not answer."""
    if not state.mounted:
        return []
    return [one for one in state.store if one.account == tree.account]


def _restore(state: State, inc: int, checkpoint: int) -> State:
    tree = state.tree(inc)
    if tree is None or tree.state is not TreeState.HOLDING:
        return state
    there = state.saved(checkpoint)
    leased = any(
        one.origin == checkpoint and one.state is not TreeState.HOLDING
        for one in state.trees
    )
    if there is None or leased or not state.mounted:
        return state.but(tree._replace(failed=True, origin=checkpoint))
    return state.but(
        tree._replace(state=TreeState.RESTORING, origin=checkpoint, value=there.value)
    )


def _release(state: State, inc: int, checkpoint: int) -> State:
    """End a captured tree; the agent refuses where nothing is committed."""
    tree = state.tree(inc)
    if tree is None or tree.state is not TreeState.CAPTURED:
        return state
    missing = not state.mounted or state.saved(checkpoint) is None
    if missing or tree.saving != checkpoint:
        return state
    return state.without(inc, "law 1: released, and what it held is not saved")


def agent(state: State) -> Iterator[Step]:
    """What the agent does by itself, and how it settles what a former one left."""
    if not state.agent:
        yield "the agent starts", _recovered(state)._replace(agent=True)
        return
    if state.silent:
        yield "its node answers again", state._replace(silent=False)
    if not state.mounted:
        yield "the store is there again", state._replace(mounted=True)
    for tree in state.trees:
        if tree.copy is not None and state.mounted:
            yield f"{tree.inc} has {tree.copy.id} behind it", _stored(state, tree)
        elif tree.copy is not None:
            yield f"{tree.inc} has no save point", state.but(tree._replace(copy=None))
        if tree.state is TreeState.CAPTURING and (tree.stuck or not state.mounted):
            why = "would not come back" if tree.stuck else "cannot be saved now"
            yield f"{tree.inc} {why}", state.but(tree.going_on())
        elif tree.state is TreeState.CAPTURING:
            made = Saved(
                tree.saving, tree.inc, tree.term, tree.origin, tree.value, tree.account
            )
            after = state.but(tree._replace(state=TreeState.CAPTURED))
            yield (
                f"{tree.inc} is saved as {made.id}",
                after._replace(store=(*state.store, made)),
            )
        elif tree.state is TreeState.RESTORING and state.saved(tree.origin) is None:
            undone = tree._replace(state=TreeState.HOLDING, failed=True)
            yield f"{tree.inc} finds no {tree.origin}", state.but(undone)
        elif tree.state is TreeState.RESTORING and state.mounted:
            yield (
                f"{tree.inc} is back from {tree.origin}",
                state.but(tree._replace(state=TreeState.RUNNING)),
            )


def _stored(state: State, tree: Tree) -> State:
    """A save point is committed, and the agent has noted that."""
    assert tree.copy is not None
    after = state.but(tree._replace(copy=None, origin=tree.copy.id, kept=True))
    return after._replace(store=(*state.store, tree.copy))


def _recovered(state: State) -> State:
    """Captures are taken as committed or undone, restores are undone."""
    trees = []
    for each in state.trees:
        tree = each._replace(copy=None)
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
    if state.hub is HubState.STOPPING and state.service and state.answers:
        after = _stop_plan(state, decide)
        if after is not None:
            yield "the Hub stops the server", after
    elif state.hub is HubState.UNSETTLED:
        if mine is None or mine.state is TreeState.HOLDING:
            after = state._replace(hub=HubState.STOPPED)
            if mine is None and state.service and state.answers:
                after = _stop_plan(state, decide) or after
            yield "the Hub finds no server", after
        elif mine.runs:
            yield "the Hub finds its server", state._replace(hub=HubState.RUNNING)
        elif patient:
            yield from _gives_up(state, mine)
    elif state.hub is HubState.RUNNING and mine is None and ENDS in state.kinds:
        after = state._replace(hub=HubState.STOPPED)
        if state.service and state.answers:
            after = _stop_plan(state, decide) or after
        yield "the Hub finds that its server has ended", after
    elif state.hub is HubState.SPAWNING and state.service:
        yield from _late(state, mine) if patient else _spawn(state, mine)


def _gives_up(state: State, mine: Tree) -> Iterator[Step]:
    """A Hub that gets no answer stops the server, which nobody has asked for."""
    stopped = state._replace(hub=HubState.STOPPED)
    if state.row.inc == mine.inc and state.row.phase in SAVED and state.answers:
        stopped = _release(stopped, mine.inc, state.row.checkpoint)
    yield "the Hub gives its check up", stopped


def _spawn(state: State, mine: Tree | None) -> Iterator[Step]:
    row = state.row
    resuming = row.phase is Phase.RESUMING and row.inc == state.hub_inc
    told = state.joined or _is_unknown(state)
    if mine is None and resuming:
        new = Tree(state.hub_inc, TreeState.HOLDING, account=state.owner)
        yield "a place is made", state._replace(trees=(*state.trees, new))
    elif mine is None:
        yield "the start has failed", state._replace(hub=HubState.STOPPED)
    elif mine.runs and (row.inc == mine.inc or told):
        if mine.account != state.owner:
            raise Broken("accounts: another's session runs for it")
        if mine.value < state.truth:
            raise Broken("law 9: an older state is shown as the session")
        if told or row.phase not in SAVED:
            up = state._replace(hub=HubState.RUNNING, hub_saved=0)
            yield "the server answers", up
    elif resuming and not row.placed:
        yield "the place is reported", state._replace(row=row._replace(placed=True))


def _is_unknown(state: State) -> bool:
    """Whether the journal does not know what is back: its spawner is told, if asked."""
    return state.answers and state.hub_inc not in {state.row.inc, *state.ending}


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
    asked = _question(state, Want.STOP, state.hub_inc)
    action, state = _asked(state, asked, decide)
    done = state._replace(hub=HubState.STOPPED, insisted=False)
    mine = state.tree(state.hub_inc)
    match action.kind:
        case AnswerKind.KEEP | AnswerKind.REFUSE:
            return done  # its programs are kept
        case AnswerKind.SAVED if mine is not None:
            done = done._replace(hub_saved=state.row.checkpoint)
            after = _release(done, mine.inc, state.row.checkpoint)
            return after if after.tree(mine.inc) is None else None
        case AnswerKind.SAVED:
            return done._replace(hub_saved=state.row.checkpoint)
        case AnswerKind.END if state.hub is HubState.STOPPING:
            # Nobody else stops it here, and its spawner knows that the stop is ours,
            # which is there to release what is saved (``SessionLifecycle.stop``).
            return done
        case AnswerKind.END:
            after = done.without(
                state.hub_inc, "law 1: stopped, and what it held is not saved"
            )
            left = [one.value for one in after.store if one.account == state.owner]
            whole = [one for one in after.trees if one.state is not TreeState.HOLDING]
            trees = [one for one in whole if one.account == state.owner]
            if trees or any(value >= state.truth for value in left):
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


def _question(state: State, want: Want, inc: int) -> Asked:
    return Asked(
        want,
        str(inc),
        checkpoint=str(state.hub_saved or ""),
        stamp=_stamp(state, state.hub_saved),
        former=f"s{state.owner}" if state.hub_inc else "",
        remembered=bool(state.hub_inc),
        listed=_is_listed(state),
        kept=_kept(state.row),
    )


def _stamp(state: State, saved: int) -> tuple[int, int]:
    """That of what the Hub remembers, which may be deleted: ids rise as stamps do."""
    mine = (one for one in state.row.known if one.id == state.row.checkpoint)
    term = next((one.term for one in mine if saved <= one.id), state.row.term)
    return term, _generation(term, saved)


def _is_listed(state: State) -> bool:
    """Whether the service has seen a list, with nothing newer than its journal."""
    if state.listed is None:
        return False
    there = tuple(one for one in state.row.known if one.id in state.listed)
    had = _observed(state)._replace(saved=_list(there))
    return phase.is_current(_row(state.row), had)


def _asked(state: State, asked: Asked, decide: Decide) -> tuple[Action, State]:
    """The product's answer to a question, after all that it has done before it."""
    state = _seen_in_store(_heard(state))
    while True:
        action = _answer(state, asked, decide)
        if action.kind in {*AnswerKind, ActionKind.UNANSWERED, ActionKind.WAIT}:
            return action, state
        after = _act(state, action)
        if after is None or after == state:
            if not state.mounted or not state.answers:
                return Action(ActionKind.UNANSWERED), state
            raise Broken(f"asked for a {asked.want}, it {action.kind} without end")
        state = after


def _answer(state: State, asked: Asked, decide: Decide) -> Action:
    """What the product says, asking one part after the other, as it does itself."""
    if state.answers and state.mounted:
        seen = _observed(state)._replace(hub=HubState.SPAWNING)
        asked = asked._replace(kept=_kept(state.row))
        return decide(_row(state.row), seen, 0.0, SETTINGS, asked)
    parts = _Parts(state, decide)
    coroutine = parts._ask_reconciler(_row(state.row), asked)
    try:
        coroutine.send(None)
    except StopIteration as ended:
        answer, _ = ended.value
        action: Action = answer.action
        return action
    raise AssertionError


class _Parts(Planner):
    """The product's questions to parts some of which are silent."""

    def __init__(self, state: State, decide: Decide) -> None:
        self._state = state
        self._decide = decide
        self.sessions: Any = SimpleNamespace(agent=self)

    async def trees(self, key: SessionKey) -> Any:
        """As an agent answers."""
        del key
        trees = _observed(self._state).trees
        if trees is None:
            node = NODE in self._state.kinds
            raise Unreachable(Reason.NODE_SILENT if node else Reason.AGENT_UNREACHABLE)
        return trees

    async def checkpoints(self, key: SessionKey) -> Any:
        del key
        saved = _observed(self._state).saved
        if saved is None:
            raise StoreError(Reason.STORE_ABSENT)
        return saved

    def _settle(self, row: SessionRow, observed: Observed, asked: Asked) -> Any:
        asked = asked._replace(kept=_kept(self._state.row))
        observed = observed._replace(hub=HubState.SPAWNING)
        action = self._decide(row, observed, 0.0, SETTINGS, asked)
        return Answer(action, row, observed)


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
    if row.phase in LIVE and not row.order and state.service and state.saves:
        save = state._replace(row=row._replace(order="save"), saves=state.saves - 1)
        yield "a save point is ordered", save
    if row.phase is Phase.NAPPING and state.service and row.order != "wake":
        yield "a wake is ordered", state._replace(row=row._replace(order="wake"))
    if state.hub is HubState.STOPPED and state.visits:
        less = state._replace(visits=state.visits - 1)
        opened = _start_plan(less, decide)
        if opened is not None:
            yield "somebody opens the page", opened
        if ORDERS in state.kinds and state.faults and state.late is None:
            yield from _start_held_up(state._replace(visits=state.visits - 1), decide)
    yield from _of_names(state)
    if state.hub is HubState.STOPPED and row.doubt and not row.word:
        told = state._replace(gone=state.gone and row.doubt not in _TOLD)
        said = _start_plan(told._replace(row=row._replace(word=True)), decide)
        if said is not None:
            yield "its user says that it is to come back", said


def _of_names(state: State) -> Iterator[Step]:
    """The Hub's administrator deletes users, or gives them other names."""
    if state.hub is not HubState.STOPPED:
        return
    if state.kinds & {ACCOUNTS, DELETED} and state.owner == 1:
        new = state._replace(owner=2, truth=-1, hub_inc=0, hub_saved=0)
        if state.backup is not None:  # of that Hub, there is a copy without the first
            new = new._replace(backup=(state.backup[0], HubState.STOPPED, 0, 0))
        if ACCOUNTS in state.kinds:
            former = new._replace(former=state.truth)
            yield "another user has the name", former
        elif state.service:
            yield "the user is deleted, and another one made", accounts.ordered(new)
    there = bool(state.trees or state.store)
    asked = there and state.service and state.answers and state.mounted
    if RENAMED in state.kinds and asked and not accounts.told_of_another_name(state):
        raise Broken("names: started cold under the new one, in silence")


def _start_held_up(state: State, decide: Decide) -> Iterator[Step]:
    """What must be ordered before there is an answer has none itself: it is refused."""
    if state.service and state.answers:
        state = _heard(state)
        asked = _question(state, Want.START, state.next)
        action = _answer(state, asked, decide)
        yield from _held_up(state, action)


#: Answers to a start by which its user knows that the newest state is not there.
_TOLD = {
    reason.value
    for reason in (
        Reason.SAVED_FOUND,
        Reason.SAVED_OLDER,
        Reason.CHECKPOINT_MISSING,
        Reason.ENDED_SINCE_SAVED,
    )
}


def _start_plan(state: State, decide: Decide) -> State | None:
    """The Hub asks how to start; None: refused for now."""
    silent = not state.answers and not state.kinds & {NODE, ALONE}
    if not state.service or silent:
        return None
    if state.kinds & {ACCOUNTS, DELETED}:
        state, may = accounts.check(state)
        if not may:
            return state
    while True:
        asked = _question(state, Want.START, state.next)
        action, state = _asked(state, asked, decide)
        if action.kind is AnswerKind.MISSING:
            failure = Reason.CHECKPOINT_MISSING.value
            state = state.to(
                SessionEvent.FOUND_SAVED, checkpoint=state.hub_saved, doubt=failure
            )
        elif action.kind is ActionKind.BRING_BACK:
            state = _act(state, action) or state
        elif state.kinds & {ACCOUNTS, DELETED}:
            return _for_its_owner(state, action)
        else:
            return _planned(state, action)


def _for_its_owner(state: State, action: Action) -> State | None:
    """The same, where it may be another account's: more may have been found."""
    state, may = accounts.check(state)
    if not may or (
        action.kind is AnswerKind.JOIN
        and action.tree is not None
        and not accounts.joins(state, action.tree)
    ):
        return state
    anothers = state.saved(state.row.checkpoint)
    returns = action.kind is AnswerKind.RETURN and anothers is not None
    if returns and anothers and anothers.account != state.owner:
        raise Broken("accounts: another's session comes back to it")
    starts = {AnswerKind.COLD, AnswerKind.JOIN, AnswerKind.RETURN}
    if action.kind in starts:
        state = accounts.noted(state)
    if action.kind is not AnswerKind.COLD or state.truth >= 0:
        return _planned(state, action)
    fresh = Tree(state.next, TreeState.RUNNING, account=state.owner)
    started = state._replace(trees=(*state.trees, fresh), truth=0)
    started = started.to(
        SessionEvent.STARTED, inc=state.next, session=state.owner, checkpoint=0
    )
    return started._replace(
        row=started.row._replace(account=state.owner),
        hub=HubState.RUNNING,
        hub_inc=state.next,
        next=state.next + 1,
    )


def _is_unheard_of(state: State) -> bool:
    """Whether something is gone, and journal and Hub were put back together with it."""
    named = {one.id for one in state.row.known} | {state.hub_saved} - {0}
    return named <= {one.id for one in state.store}


def _planned(state: State, action: Action) -> State | None:
    row = state.row
    match action.kind:
        case AnswerKind.COLD if state.truth < 0 and (
            state.ended or _is_unheard_of(state)
        ):
            return state
        case AnswerKind.COLD:
            raise Broken("law 4: started cold, though its state was never given up")
        case ActionKind.UNANSWERED:
            return None
        case AnswerKind.ASK if action.failure is not None:
            told = action.failure.code in _TOLD
            asks = row._replace(doubt=action.failure.code, word=False)
            return state._replace(row=asks, gone=state.gone and not told)
        case AnswerKind.JOIN if action.tree is not None:
            inc = int(action.tree.incarnation)
            if inc in state.ending:
                # Its end was ordered; that is done first, and asked for again.
                return state.without(inc, "law 9: ended when somebody comes")
            same = row.phase in {*LIVE, Phase.RESUMING} and inc == row.inc
            after = state if same else _adopted(state, inc)
            return after._replace(
                hub=HubState.SPAWNING, hub_inc=inc, hub_saved=0, joined=True
            )
        case AnswerKind.RETURN if state.mounted:
            if state.gone and not _is_unheard_of(state):
                raise Broken("law 9: an older state comes back, and nobody was told")
            started = state.to(
                SessionEvent.RESTORE, inc=state.next, placed=False, stop_asked=False
            )
            return started._replace(
                hub=HubState.SPAWNING,
                hub_inc=state.next,
                hub_saved=row.checkpoint,
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
        yield "FAULT: the service is killed", _anew(less)._replace(service=False)
    if state.agent:
        yield "FAULT: the agent is killed", less._replace(agent=False)
    yield "FAULT: the Hub is killed", less._replace(hub=_restarted(state.hub))
    if state.row.order == "nap":
        yield "FAULT: a nap fails", less._replace(row=state.row._replace(order=""))
    lost = Row(Phase.STOPPED)
    if state.row != lost:
        gone = _anew(less)._replace(row=lost, term=state.term + 1)
        yield "FAULT: the journal is lost", gone
    if state.backup is None:
        copies = (state.row, state.hub, state.hub_inc, state.hub_saved)
        yield "the databases are copied", state._replace(backup=copies)
    else:
        yield from _put_back(state, less, *state.backup)
    yield from _of_kinds(state, less)
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
        if tree.copy is not None and state.agent and state.mounted:
            stored = (*state.store, tree.copy)
            cut = less.but(tree._replace(copy=None))._replace(agent=False)
            how = "FAULT: the agent is killed in the commit of a save point"
            yield how, cut._replace(store=stored)


def _anew(state: State) -> State:
    """What only the program knew is forgotten."""
    silent = state.kinds & _SILENT  # else its first look comes first
    return state._replace(ending=frozenset(), listed=None if silent else frozenset())


def _of_kinds(state: State, less: State) -> Iterator[Step]:
    """The faults of further kinds, where they are allowed."""
    if AWAY in state.kinds and state.mounted:
        yield "FAULT: the store is away", less._replace(mounted=False)
    if STORE in state.kinds:
        if state.copy is None:
            yield "the store is copied", state._replace(copy=state.store)
        elif state.copy != state.store:
            yield "FAULT: the store is put back", _store_put_back(less, state.copy)
    if NODE in state.kinds and not state.silent:
        yield "FAULT: its node is silent", less._replace(silent=True)
    if RECORDS in state.kinds and state.agent:
        yield "FAULT: the agent's folder is lost", _without_records(less)
    if ENDS in state.kinds:
        for tree in state.trees:
            if tree.runs and any(one.inc == tree.inc for one in state.store):
                yield "FAULT: its programs end", _ended(less, tree)
            if tree.runs and state.saved(tree.origin) is not None and not tree.kept:
                init = Tree(tree.inc, TreeState.HOLDING, account=tree.account)
                after = _ended(less, tree)
                after = after._replace(trees=(*after.trees, init))
                yield "FAULT: its container is started again", after


def _ended(state: State, tree: Tree) -> State:
    """What its user has seen since its save point is lost; they must be told."""
    trees = tuple(one for one in state.trees if one.inc != tree.inc)
    state = state._replace(trees=trees, ended=True)
    mine: list[Saved | Tree] = [*state.store, *trees]
    left = max((one.value for one in mine if one.account == state.owner), default=-1)
    if left >= state.truth:
        return state
    return state._replace(truth=left, gone=True)


def _store_put_back(state: State, store: tuple[Saved, ...]) -> State:
    """The newest state is then what is left; the person must be told of what is not."""
    state = state._replace(store=store)
    empty = {TreeState.HOLDING, TreeState.RESTORING}
    trees = [tree for tree in state.trees if tree.state not in empty]
    values = [one.value for one in store] + [tree.value for tree in trees]
    left = max(values, default=-1)
    if left >= state.truth:
        return state
    return state._replace(truth=left, gone=True)


def _without_records(state: State) -> State:
    """What the processes tell is left, and what the store knows of what is frozen."""
    trees = []
    for tree in state.trees:
        bare = tree._replace(origin=0, failed=False, copy=None, kept=False)
        if tree.state is TreeState.RESTORING:
            bare = bare._replace(state=TreeState.HOLDING, saving=0)
        elif tree.state in {TreeState.CAPTURING, TreeState.CAPTURED}:
            mine = (one for one in state.store if one.inc == tree.inc)
            own = [one for one in mine if not one.goes_on]
            last = max(own, key=lambda one: (one.term, one.id), default=None)
            if last is None:
                bare = bare._replace(saving=0).going_on()
            else:
                bare = bare._replace(state=TreeState.CAPTURED, saving=last.id)
        else:
            bare = bare._replace(saving=0)
        trees.append(bare)
    return state._replace(trees=tuple(trees), agent=False, heard=0)


def _put_back(
    state: State, less: State, row: Row, hub: HubState, inc: int, saved: int
) -> Iterator[Step]:
    """The journal, the Hub's database, or both, as they were when they were copied."""
    journal = _anew(less)._replace(row=row, term=state.term + 1)
    if row != state.row:
        yield "FAULT: the journal is put back", journal
    if (hub, inc, saved) != (state.hub, state.hub_inc, state.hub_saved):
        for how, after in (("Hub's database is", less), ("databases are", journal)):
            hubs = after._replace(hub=_restarted(hub), hub_inc=inc, hub_saved=saved)
            yield f"FAULT: the {how} put back", hubs


def _restarted(hub: HubState) -> HubState:
    """What a Hub that was killed believes when it is back."""
    down = hub in {HubState.SPAWNING, HubState.STOPPED}
    return HubState.STOPPED if down else HubState.UNSETTLED


# --- as the product sees it -----------------------------------------------------------


@cache
def _row(row: Row) -> SessionRow:
    failure = Failure(code=row.doubt, message="") if row.doubt else None
    return SessionRow(
        key=KEY,
        phase=row.phase,
        since=float(row != Row(Phase.STOPPED)),
        session=f"s{row.session}" if row.inc else "",
        account=_account(row.account),
        claimed=row.claimed,
        incarnation=str(row.inc),
        stamp=(row.term, _generation(row.term, row.number)),
        checkpoint=str(row.checkpoint or ""),
        attempt=str(row.attempt or ""),
        placed=row.placed,
        failure=failure,
        intent=Intent.RESUME if row.word else Intent.NONE,
    )


def _account(number: int) -> str:
    return str(number or "")


def _generation(term: int, number: int) -> int:
    """Those of later services are lower here: nothing may go by them alone."""
    return number - 1000 * term


@cache
def _info(one: Saved) -> CheckpointInfo:
    return CheckpointInfo(
        id=str(one.id),
        key=KEY,
        session=f"s{one.account}",
        account=str(one.account),
        incarnation=str(one.inc),
        term=one.term,
        generation=_generation(one.term, one.id),
        created=0.0,
        logical_bytes=0,
        stored_bytes=0,
        parent=str(one.parent or ""),
        goes_on=one.goes_on,
    )


@cache
def _kept(row: Row) -> tuple[CheckpointRow, ...]:
    """What the journal has of its checkpoints; that of its session, and others."""
    kept = []
    for one in sorted(row.known):
        info = _info(one)
        if one.id in row.hidden:
            info = msgspec.structs.replace(info, aside=Aside(until=None))
        keeping = Keeping.TO_DELETE if one.id in row.doomed else Keeping.ASIDE
        kept.append(CheckpointRow(info=info, keeping=keeping))
    terms = retention.Terms(Settings(grace=1.0, set_aside=1.0), now=0.0)
    return tuple(retention.kept(_row(row), kept, terms))


def _saved_of(state: State) -> tuple[Saved, ...] | None:
    """The list of the store; any agent can give it."""
    there = state.answers or NODE in state.kinds
    return state.store if there and state.mounted else None


def _observed(state: State) -> Observed:
    store = _saved_of(state)
    trees = tuple(map(_seen, state.trees)) if state.answers else None
    if NODE in state.kinds and not state.trees:
        trees = ()  # that nothing of it is on that node, the cluster knows
    left = Mark(aside=Aside(until=None))
    words = {str(one): left for one in (*state.row.doomed, *state.row.hidden)}
    saved = None if store is None else _list(store)
    seen = Observed(trees, saved, state.hub, words)
    return accounts.living(state, seen)


@cache
def _list(store: tuple[Saved, ...]) -> tuple[CheckpointInfo, ...]:
    return tuple(map(_info, sorted(store, key=lambda one: (one.term, one.id))))


@cache
def _seen(tree: Tree) -> AgentTree:
    busy = tree.state in {TreeState.CAPTURING, TreeState.CAPTURED}
    failure = None
    if tree.failed:
        failure = Failure(code=Reason.RESTORE_FAILED.value, message="")
    return AgentTree(
        incarnation=str(tree.inc),
        key=KEY,
        session=f"s{tree.account}",
        account=str(tree.account),
        state=tree.state,
        init_pid=1,
        # The record of a save point names it as what the tree came from alone.
        checkpoint=str((tree.saving if busy else tree.origin * (not tree.kept)) or ""),
        origin=str(tree.origin or ""),
        failure=failure,
    )


def start(
    *,
    faults: int,
    suspends: int = 2,
    visits: int = 2,
    works: int = 1,
    naps: int = 0,
    saves: int = 0,
    changes: int = 0,
    stuck: bool = False,
    kinds: Iterable[str] = (),
) -> State:
    """A session that runs, and what may still happen to it."""
    kinds = frozenset(kinds)
    account = int(bool(kinds & {ACCOUNTS, DELETED, RENAMED}))
    return State(
        Row(Phase.RUNNING, inc=1, account=account),
        (Tree(1, TreeState.RUNNING, stuck=stuck),),
        changes=changes,
        faults=faults,
        suspends=suspends,
        visits=visits,
        works=works,
        naps=naps,
        saves=saves,
        kinds=kinds,
    )


from simulation.model import accounts  # noqa: E402 - it is about this module's states

"""Visits every state of the model, and looks for one that breaks a law.

Breadth first, so that the story of what is found is the shortest. Checked in every
state are laws 1, 3, 4, 6 and 9 (``docs/explanation/laws.md``), and at the end that from
each of them the session can come to rest, with its newest state, without a further
fault.
"""

from __future__ import annotations

import gc
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import HubState, Phase, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.session import SAVED
from jupyterhub_gpu_reclaim.controlplane.settle import settle
from simulation.model.session import (
    Broken,
    State,
    agent,
    deliver,
    faults,
    hub,
    person,
    service,
)

if TYPE_CHECKING:
    from simulation.model.session import Decide, Saved, Step, Tree

    #: Where each state was first reached from, and how.
    Came = dict[State, tuple[State, str] | None]


def steps(state: State, decide: Decide = settle) -> list[Step]:
    """Every step from here; those that wait for quiet only where it is quiet."""
    own = [*service(state, decide), *agent(state), *hub(state, decide)]
    if state.late is not None:
        own.append(
            ("a late order comes", deliver(state._replace(late=None), state.late))
        )
    own = [(how, after) for how, after in own if after != state]
    if not own:
        own = [*service(state, decide, patient=True), *hub(state, decide, patient=True)]
    return [*own, *person(state, decide), *faults(state)]


class Explored(NamedTuple):
    states: int
    steps: int
    begun: int  #: captures and returns, in the longest story
    moves: frozenset[tuple[Phase, Phase]]  #: of phases, that some step makes


def explore(
    start: State, decide: Decide = settle, *, most: int = 2_000_000
) -> Explored:
    """Visit every state.

    Args:
        start: where to begin.
        decide: the reconciler.
        most: states after which it gives up.

    Raises:
        Broken: a law is broken somewhere; with the shortest story that leads there.
    """
    enabled = gc.isenabled()
    gc.disable()  # no state refers to itself: a fifth of the time would be the search
    try:
        return _explore(start, decide, most)
    finally:
        if enabled:
            gc.enable()


def _explore(start: State, decide: Decide, most: int) -> Explored:
    came: Came = {start: None}
    back: dict[State, list[State]] = {}
    queue, count, moves = deque([start]), 0, set()
    while queue:
        state = queue.popleft()
        try:
            _check(state)
            following = steps(state, decide)
        except (Broken, Refused) as error:
            raise Broken(f"{error}\n{_story(came, state)}") from None
        for how, after in following:
            count += 1
            if not how.startswith("FAULT"):
                moves.add((state.row.phase, after.row.phase))
                back.setdefault(after, []).append(state)
            if after not in came:
                came[after] = (state, how)
                queue.append(after)
        if len(came) > most:
            raise Broken(f"more than {most} states")
    _check_rest(came, back)
    begun = max(state.next for state in came) - start.next
    return Explored(len(came), count, begun, frozenset(moves))


def _check(state: State) -> None:
    """What holds in every state."""
    awake = [tree for tree in state.trees if tree.runs]
    same = [t.origin for t in state.trees if t.state is not TreeState.HOLDING]
    origins = [origin for origin in same if origin]
    if len(origins) != len(set(origins)):
        raise Broken("law 3: one checkpoint is restored twice")
    if len({tree.account for tree in awake}) < len(awake):
        raise Broken("law 6: two trees of one session run")
    known = {one.id for one in state.row.known}
    missing = state.row.doubt == Reason.CHECKPOINT_MISSING.value
    if state.row.phase in SAVED and state.row.checkpoint not in known and not missing:
        raise Broken("law 1: called saved without a checkpoint")
    left: list[Saved | Tree] = [*state.store, *state.trees]
    mine = [one.value for one in left if one.account == state.owner]
    if max(mine, default=-1) < state.truth:
        raise Broken("law 9: the newest state is nowhere")
    formers = [one.value for one in left if one.account != state.owner]
    if max(formers, default=-1) < state.former:
        raise Broken("accounts: the former one's newest state is nowhere")


def rests(state: State) -> bool:
    """Whether it runs or is suspended, all agree on that, and nothing is lost."""
    row, mine = state.row, state.tree(state.row.inc)
    if row.phase in {Phase.RUNNING, Phase.NAPPING}:
        # The journal knows whether it naps, and no order to nap or wake is left.
        naps = row.phase is Phase.NAPPING
        agreed = mine and mine.runs and mine.naps is naps and not row.order
        return bool(agreed and mine and mine.value >= state.truth)
    others = [tree for tree in state.trees if tree.runs]
    if state.hub is HubState.STOPPED and any(t.value >= state.truth for t in others):
        return True  # reported, and taken over as soon as somebody opens the page
    saved = state.saved(row.checkpoint)
    if saved is None:
        # The store is of before that: its user is told, and may have what is left.
        saved = max(state.store, key=lambda one: one.value, default=None)
    if state.owner != 1 and state.hub in {HubState.STOPPED, HubState.RUNNING}:
        return True  # an administrator may have to say whose it is
    if not state.store and state.truth < 0:
        # Its user is told at the next visit, where anybody has heard of it.
        at_rest = {Phase.SUSPENDED, Phase.STOPPED}
        return row.phase in at_rest and state.hub is HubState.STOPPED
    alone = not state.trees and state.hub is HubState.STOPPED
    return bool(
        row.phase is Phase.SUSPENDED and alone and saved and saved.value >= state.truth
    )


def _check_rest(came: Came, back: dict[State, list[State]]) -> None:
    """From every state rest can be reached without a further fault.

    Raises:
        Broken: not from this one.
    """
    reached = {state for state in came if rests(state)}
    queue = deque(reached)
    while queue:
        for before in back.get(queue.popleft(), ()):
            if before not in reached:
                reached.add(before)
                queue.append(before)
    for state in came:
        if state not in reached:
            raise Broken(f"law 6: it never comes to rest\n{_story(came, state)}")


def _story(came: Came, state: State) -> str:
    lines = [str(state)]
    here = came[state]
    while here is not None:
        before, how = here
        lines.append(f"  {how}")
        here = came[before]
    return "\n".join(reversed(lines))

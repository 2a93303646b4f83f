"""The table of phases: no order of faults breaks a law, or leaves it."""

import pytest

from jupyterhub_gpu_reclaim.common.models import HubState, Phase
from jupyterhub_gpu_reclaim.common.term import Term
from jupyterhub_gpu_reclaim.controlplane import owners
from jupyterhub_gpu_reclaim.controlplane.deletions import Deletions
from jupyterhub_gpu_reclaim.controlplane.session import LIVE, TABLE
from jupyterhub_gpu_reclaim.controlplane.settle import (
    WAIT,
    Action,
    ActionKind,
    AnswerKind,
    settle,
)
from simulation.model.__main__ import main
from simulation.model.explorer import explore
from simulation.model.session import (
    ACCOUNTS,
    ALONE,
    AWAY,
    DELETED,
    ENDS,
    NODE,
    ORDERS,
    RECORDS,
    RENAMED,
    STORE,
    Broken,
    start,
)
from tests.support.long_stories import but

#: Steps of the table that the model does not take: nothing is started cold, no other
#: state is chosen, and none ends with nothing kept (``ENDS``).
NOT_IN_THE_MODEL = {
    (Phase.RUNNING, Phase.STOPPED),
    (Phase.NAPPING, Phase.STOPPED),
    (Phase.SUSPENDING, Phase.STOPPED),
    (Phase.STOPPED, Phase.RUNNING),
    (Phase.SUSPENDED, Phase.STOPPED),
}


def is_step(before: Phase, after: Phase) -> bool:
    return any(was is before and TABLE[was, how] is after for was, how in TABLE)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("faults", "suspends"), but([(1, 2), (2, 1), (2, 2)], (1, 2)))
def test_no_order_of_faults_breaks_a_law_or_keeps_a_session_from_rest(faults, suspends):
    found = explore(start(faults=faults, suspends=suspends))
    assert found.states > 10_000
    taken = {(one, other) for one, other in found.moves if one is not other}
    assert all(is_step(*move) or in_two(*move) for move in taken)
    meant = {(one, TABLE[one, how]) for one, how in TABLE if TABLE[one, how] is not one}
    naps = {(one, other) for one, other in meant if Phase.NAPPING in {one, other}}
    if faults == suspends == 2:
        assert meant - taken - naps <= NOT_IN_THE_MODEL


@pytest.mark.long
def test_no_order_of_two_faults_and_a_nap_breaks_a_law_or_lets_it_nap_on():
    found = explore(start(faults=2, suspends=1, naps=1))
    assert found.states > 10_000
    taken = {(one, other) for one, other in found.moves if one is not other}
    assert all(is_step(*move) or in_two(*move) for move in taken)
    naps = {
        (one, TABLE[one, how])
        for one, how in TABLE
        if TABLE[one, how] is not one and Phase.NAPPING in {one, TABLE[one, how]}
    }
    assert naps - taken <= NOT_IN_THE_MODEL


@pytest.mark.parametrize("kind", but([None, RECORDS, ORDERS, AWAY, NODE, ALONE], ALONE))
def test_what_came_after_a_save_point_is_lost_by_no_order_and_not_in_silence(kind):
    """Its programs end by themselves, or an order before it comes after it."""
    kinds = {ENDS, kind} - {None}
    found = explore(start(faults=1, saves=1, suspends=1, visits=1, kinds=kinds))
    assert found.states > 10_000


def forgets_save_points(row, observed, now, settings, asked=None):
    """Takes a session that has ended for one that left nothing."""
    action = settle(row, observed, now, settings, asked)
    lost = action.kind is ActionKind.TAKE and action.phase is Phase.SUSPENDED
    if lost and row.phase in LIVE and asked is not None:
        return Action(AnswerKind.END)
    return (
        action._replace(phase=Phase.STOPPED) if lost and row.phase in LIVE else action
    )


def test_save_points_that_are_forgotten_are_missed():
    with pytest.raises(Broken, match="law 4"):
        explore(start(faults=1, saves=1, kinds={ENDS}), forgets_save_points)


def in_two(before: Phase, after: Phase) -> bool:
    """Whether two steps lead there: one call of the spawner may make as many."""
    return any(is_step(before, one) and is_step(one, after) for one in Phase)


def ends_a_later_life(row, observed, now, settings, asked=None):
    """As it was: a session that has returned is stopped for an old release."""
    action = settle(row, observed, now, settings, asked)
    if row.phase is Phase.RELEASING and observed.hub is HubState.RUNNING:
        return Action(ActionKind.STOP_AT_HUB)
    if asked is not None and action.kind is AnswerKind.KEEP:
        return Action(AnswerKind.END)
    return action


def waits_for_ever(row, observed, now, settings, asked=None):
    """As it was: a captured tree in a resume that was over is left frozen."""
    frozen = observed.frozen() is not None
    if row.phase is Phase.RESUMING and frozen and asked is None:
        return WAIT
    return settle(row, observed, now, settings, asked)


def kills_what_is_beside(row, observed, now, settings, asked=None):
    """Kills a second tree, whatever it holds."""
    action = settle(row, observed, now, settings, asked)
    if action.kind is ActionKind.REPORT:
        return action._replace(kind=ActionKind.KILL)
    adopts = action.kind is ActionKind.TAKE and action.phase in LIVE
    if adopts and row.incarnation != action.tree.incarnation:
        return Action(ActionKind.KILL, action.tree)
    return action


def misses_naps(row, observed, now, settings, asked=None):
    """Takes the journal's word for whether a session naps."""
    action = settle(row, observed, now, settings, asked)
    if action.kind is ActionKind.TAKE and {row.phase, action.phase} <= LIVE:
        return Action(ActionKind.READY, action.tree)
    return action


def test_reconciler_that_misses_naps_is_found_with_its_story():
    with pytest.raises(Broken, match="law 6: it never comes to rest"):
        explore(start(faults=0, naps=1), misses_naps)


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (ends_a_later_life, "law 4: the Hub forgets what may come back"),
        (waits_for_ever, "law 6: it never comes to rest"),
        (kills_what_is_beside, "law 9: a tree with the newest state is killed"),
    ],
)
def test_reconciler_with_a_fault_is_found_with_its_story(wrong, law):
    with pytest.raises(Broken) as broken:
        explore(start(faults=1), wrong)
    assert str(broken.value).startswith(law)
    assert "FAULT: " in str(broken.value)


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        (ALONE, {"faults": 1}),
        *(
            pytest.param(kind, bounds, marks=pytest.mark.long)
            for kind, bounds in [
                (ORDERS, {"faults": 2, "suspends": 1, "visits": 3}),
                (NODE, {"faults": 2, "suspends": 1}),
                (ALONE, {"faults": 2}),
                (RECORDS, {"faults": 2, "suspends": 1}),
                (AWAY, {"faults": 2, "suspends": 1}),
                (STORE, {"faults": 1}),
                (RENAMED, {"faults": 1}),
                (ACCOUNTS, {"faults": 1}),
                (DELETED, {"faults": 1}),
            ]
        ),
    ],
)
def test_no_fault_of_a_further_kind_breaks_a_law(kind, bounds):
    found = explore(start(kinds=[kind], **bounds))
    print(kind, found.states, "states")
    assert found.states > 10_000


@pytest.mark.parametrize("kind", [ACCOUNTS, DELETED])
def test_another_account_of_that_name_gets_nothing_and_deletes_nothing(kind):
    found = explore(start(faults=0, suspends=3, visits=3, works=2, kinds=[kind]))
    print(kind, found.states, "states")
    assert found.states > 300


@pytest.mark.long
def test_journal_and_store_are_put_back_during_a_return():
    """What is back may be all that there is, and its spawner is told that it is."""
    found = explore(start(faults=2, suspends=1, visits=1, works=0, kinds=[STORE]))
    print(found.states, "states")
    assert found.states > 30_000


def lets_anybody_in(sessions, placement):
    """As if a name were enough."""


def test_name_that_is_taken_for_an_account_is_found(monkeypatch):
    monkeypatch.setattr(owners, "check", lets_anybody_in)
    with pytest.raises(Broken, match="accounts: another's session"):
        explore(start(faults=0, kinds=[ACCOUNTS]))


def test_order_to_delete_that_spares_nobody_is_found(monkeypatch):
    for rule in ("_is_old", "_is_saved"):
        monkeypatch.setattr(Deletions, rule, lambda self, order, found: True)
    with pytest.raises(Broken):
        explore(start(faults=0, kinds=[DELETED]))


def test_command_explores_with_other_bounds(capsys, monkeypatch):
    bounds = ["--faults", "0", "--suspends", "1", "--kinds", RENAMED, ORDERS]
    assert main(bounds) == 0
    assert "states" in capsys.readouterr().out
    monkeypatch.setattr(owners, "check", lets_anybody_in)
    assert main(["--faults", "0", "--kinds", ACCOUNTS]) == 1


def takes_silence_for_emptiness(row, observed, now, settings, asked=None):
    """As if a store that is away had said that nothing is in it."""
    if observed.saved is None and observed.trees is not None:
        observed = observed._replace(saved=())
    return settle(row, observed, now, settings, asked)


def test_store_that_is_away_and_taken_for_empty_is_found():
    with pytest.raises(Broken) as broken:
        explore(start(faults=2, suspends=1, kinds=[AWAY]), takes_silence_for_emptiness)
    assert "FAULT: the store is away" in str(broken.value)


def test_late_order_that_is_obeyed_for_a_former_service_is_found(monkeypatch):
    monkeypatch.setattr(Term, "is_before", lambda self, other: False)
    with pytest.raises(Broken) as broken:
        explore(start(faults=2, suspends=1, visits=3, works=0, kinds=[ORDERS]))
    assert "is late" in str(broken.value)


@pytest.mark.parametrize("orders", [1, 2])
def test_what_would_not_come_back_goes_on_after_one_attempt_for_each_order(orders):
    found = explore(start(faults=0, suspends=orders, stuck=True))
    assert found.begun == orders


def test_what_would_not_come_back_is_never_released_whatever_goes_wrong():
    found = explore(start(faults=2, stuck=True))
    phases = {phase for move in found.moves for phase in move}
    # A lost journal has no row of it.
    assert phases == {Phase.RUNNING, Phase.SUSPENDING, Phase.STOPPED}


@pytest.mark.long
def test_what_can_come_back_only_now_and_then_breaks_no_law():
    assert explore(start(faults=1, changes=2)).states > 10_000

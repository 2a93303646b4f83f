"""The phases on paper: the code has the same, and no order of faults breaks a law."""

from __future__ import annotations

import pytest

from jupyterhub_gpu_reclaim.common.models import HubState, Phase
from jupyterhub_gpu_reclaim.controlplane.loop.reconciler import (
    WAIT,
    Action,
    ActionKind,
    settle,
)
from jupyterhub_gpu_reclaim.controlplane.model.phases import TABLE, SessionEvent
from simulation.model.explorer import explore
from simulation.model.paper import PAPER, is_step
from simulation.model.session import Broken, start

#: Steps of the paper that the model does not take: nobody is warned in it, nothing is
#: started cold, and no other state is chosen.
NOT_IN_THE_MODEL = {
    (Phase.RUNNING, Phase.WARNED),
    (Phase.STOPPED, Phase.RUNNING),
    (Phase.SUSPENDED, Phase.STOPPED),
    (Phase.WARNED, Phase.RUNNING),
    (Phase.WARNED, Phase.SUSPENDING),
    (Phase.WARNED, Phase.STOPPED),
    (Phase.WARNED, Phase.SUSPENDED),
    (Phase.WARNED, Phase.RELEASING),
}


def test_table_of_the_code_is_the_one_on_paper():
    assert TABLE == PAPER


def test_no_order_of_two_faults_breaks_a_law_or_keeps_a_session_from_rest():
    found = explore(start(faults=2))
    assert found.states > 10_000
    taken = {(one, other) for one, other in found.moves if one is not other}
    assert all(is_step(*move) or in_two(*move) for move in taken)
    meant = {(one, PAPER[one, how]) for one, how in PAPER if PAPER[one, how] is not one}
    assert meant - taken <= NOT_IN_THE_MODEL


def in_two(before: Phase, after: Phase) -> bool:
    """Whether two steps lead there: one call of the spawner may make as many."""
    return any(is_step(before, one) and is_step(one, after) for one in Phase)


def ends_a_later_life(row, observed, now, settings):
    """As it was: a session that has returned is stopped for an old release."""
    action = settle(row, observed, now, settings)
    if row.phase is Phase.RELEASING and observed.hub is HubState.RUNNING:
        return Action(ActionKind.STOP_AT_HUB)
    return action


def waits_for_ever(row, observed, now, settings):
    """As it was: a captured tree in a resume that was over is left frozen."""
    if row.phase is Phase.RESUMING and observed.frozen() is not None:
        return WAIT
    return settle(row, observed, now, settings)


def kills_what_is_beside(row, observed, now, settings):
    """Kills a second tree, whatever it holds."""
    action = settle(row, observed, now, settings)
    if action.kind is ActionKind.REPORT:
        return action._replace(kind=ActionKind.KILL)
    if action.kind is ActionKind.ADOPT:
        return Action(ActionKind.KILL, action.tree)
    return action


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (ends_a_later_life, "law 9: the Hub stops what nobody has saved"),
        (waits_for_ever, "law 6: it never comes to rest"),
        (kills_what_is_beside, "law 9: a tree with the newest state is killed"),
    ],
)
def test_reconciler_with_a_fault_is_found_with_its_story(wrong, law):
    with pytest.raises(Broken) as broken:
        explore(start(faults=2), wrong)
    assert str(broken.value).startswith(law)
    assert "FAULT: the journal is put back" in str(broken.value)


def test_is_step_knows_which_phases_follow_each_other():
    assert is_step(Phase.RUNNING, Phase.SUSPENDING)
    assert is_step(Phase.RUNNING, Phase.RUNNING)
    assert is_step(Phase.SUSPENDING, Phase.RELEASING, SessionEvent.COMMITTED)
    assert not is_step(Phase.RUNNING, Phase.RELEASING, SessionEvent.COMMITTED)
    assert not is_step(Phase.RELEASING, Phase.RESUMING)
    assert not is_step(Phase.STOPPED, Phase.SUSPENDING)

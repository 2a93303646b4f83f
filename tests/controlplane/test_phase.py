"""The phase, computed from those who know; nothing of it is stored."""

from __future__ import annotations

import itertools

import pytest

from jupyterhub_gpu_reclaim.common.models import (
    Aside,
    CheckpointInfo,
    HubState,
    Phase,
    SessionKey,
    Tree,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed
from jupyterhub_gpu_reclaim.controlplane.phase import Derived, Wishes, derive

KEY = SessionKey("ann")
ASIDE = Aside(until=None)


def tree(state: str, checkpoint: str = "", **more) -> Tree:
    return Tree(
        incarnation="i1",
        key=KEY,
        state=TreeState(state),
        init_pid=7,
        checkpoint=checkpoint,
        **more,
    )


def saved(number: int, **more) -> CheckpointInfo:
    return CheckpointInfo(
        id=f"c{number}",
        key=KEY,
        incarnation=f"i{number}",
        generation=number,
        created=float(number),
        logical_bytes=0,
        stored_bytes=0,
        session="s",
        **more,
    )


def phase(trees=(), infos=(), hub="stopped", **said) -> Derived:
    hub = HubState(hub) if hub else None
    seen = Observed(
        trees if trees is None else tuple(trees),
        infos if infos is None else tuple(infos),
        hub,
    )
    return derive(seen, Wishes(said))


@pytest.mark.parametrize(
    ("trees", "infos", "hub", "expected"),
    [
        ([tree("running")], [], "running", "running"),
        ([tree("napping")], [], "running", "napping"),
        ([tree("running")], [], "stopped", "running"),
        ([tree("running", "c1")], [saved(1)], "spawning", "resuming"),
        ([tree("running")], [], "spawning", "running"),
        ([tree("capturing", operation="save")], [], "running", "running"),
        ([tree("capturing", operation="capture")], [], "running", "suspending"),
        ([tree("captured", "c1")], [saved(1)], "running", "releasing"),
        ([tree("captured", "c1")], [], "running", "suspending"),
        ([tree("holding")], [saved(1)], "spawning", "resuming"),
        ([tree("restoring", "c1")], [saved(1)], "running", "resuming"),
        ([tree("restoring", "c1")], [saved(1)], "stopped", "suspended"),
        ([tree("gone")], [saved(1)], "stopped", "suspended"),
        ([], [saved(1)], "running", "suspended"),
        ([], [saved(1)], "spawning", "resuming"),
        ([], [saved(1)], "stopping", "releasing"),
        ([], [], "spawning", "stopped"),
        ([], [], "stopped", "stopped"),
    ],
)
def test_table(trees, infos, hub, expected):
    assert phase(trees, infos, hub).phase == Phase(expected)


# --- who is silent


@pytest.mark.parametrize("hub", [*HubState, None])
def test_store_that_is_silent_is_not_known_to_have_nothing(hub):
    assert phase([], None, hub).phase is None
    assert phase([tree("captured", "c1")], None, hub).phase is None


@pytest.mark.parametrize(("hub", "infos"), [*itertools.product(HubState, [(), None])])
def test_agent_that_is_silent_is_not_known_to_run_nothing(hub, infos):
    assert phase(None, infos, hub).phase is None
    assert phase([tree("unknown")], infos, hub).phase is None
    assert phase(None, [saved(1)], hub).phase is None


@pytest.mark.parametrize("infos", [(), None])
def test_what_runs_is_known_to_run_whoever_else_is_silent(infos):
    assert phase([tree("running")], infos, None).phase is Phase.RUNNING


def test_hub_that_is_silent_is_not_known_to_have_stopped():
    assert phase([], [saved(1)], None).phase is None


# --- the current checkpoint


def current(*infos, **said) -> str:
    return phase([], infos, **said).checkpoint


def test_newest_counts_and_its_stamp_says_which_that_is():
    assert current(saved(3, term=1), saved(2, term=2)) == "c2"


def test_what_is_set_aside_is_not_current_nor_what_it_came_from():
    assert current(saved(1), saved(2, aside=ASIDE, word=(1, 1))) == ""
    assert current(saved(1), saved(2), c2=True) == ""


def test_what_was_saved_since_is_current():
    assert current(saved(1, aside=ASIDE, word=(1, 1)), saved(2)) == "c2"


def test_older_one_that_was_chosen_since_is_current():
    left = saved(2, aside=ASIDE, word=(1, 1))
    assert current(saved(1, word=(1, 2)), left) == "c1"
    assert current(saved(1), left, c1=False) == "c1"
    assert current(saved(1), saved(2), c1=False, c2=True) == "c1"


def test_last_word_counts():
    assert current(saved(1, word=(1, 2)), saved(2, aside=ASIDE, word=(1, 3))) == ""
    assert current(saved(1, word=(1, 2)), saved(2), c2=True) == ""


def test_another_session_of_that_name_says_nothing_of_this_one():
    other = saved(2, aside=ASIDE, word=(1, 1))
    assert (
        current(saved(1), CheckpointInfo(**{**fields(other), "session": "t"})) == "c1"
    )


def fields(info: CheckpointInfo) -> dict:
    return {name: getattr(info, name) for name in info.__struct_fields__}


def test_while_it_runs_it_is_what_the_session_goes_back_to():
    point = CheckpointInfo(**{**fields(saved(3, goes_on=True)), "incarnation": "i1"})
    runs = [tree("running", "c9", origin="c2")]
    assert phase(runs, [saved(1), saved(2)]).checkpoint == "c2"
    assert phase(runs, [saved(2), point]).checkpoint == "c3"
    assert phase(runs, [saved(1)]).checkpoint == ""


# --- the question


def test_save_point_comes_back_only_by_a_word():
    assert phase([], [saved(1, goes_on=True)]).question is Reason.ENDED_SINCE_SAVED
    assert phase([], [saved(1)]).question is None
    assert phase([tree("running")], [saved(1, goes_on=True)]).question is None

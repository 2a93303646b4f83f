"""The phase, computed from those who know."""

import itertools

import pytest

from jupyterhub_gpu_reclaim.common.models import (
    Aside,
    CheckpointInfo,
    GoneOn,
    HubState,
    Mark,
    Phase,
    SessionKey,
    Tree,
    TreeState,
)
from jupyterhub_gpu_reclaim.controlplane.phase import (
    Observed,
    State,
    derive,
    differs,
    went_on,
)
from jupyterhub_gpu_reclaim.controlplane.session import SessionRow

KEY = SessionKey("ann")
ASIDE = Aside(until=None)
LEFT, CHOSEN = Mark(aside=ASIDE), Mark()
BACK = GoneOn(incarnation="i9", since=9.0)


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


def fields(info: CheckpointInfo) -> dict:
    return {name: getattr(info, name) for name in info.__struct_fields__}


def row(phase: str = "stopped", **more) -> SessionRow:
    return SessionRow(key=KEY, phase=Phase(phase), **more)


def phase(trees=(), infos=(), hub="stopped", its=None, **said) -> State | None:
    hub = HubState(hub) if hub else None
    seen = Observed(
        trees if trees is None else tuple(trees),
        infos if infos is None else tuple(infos),
        hub,
        said=said,
    )
    return derive(its or row(), seen)


#: What was begun by us, and nobody else can show yet.
SUSPENDS = row("suspending", incarnation="i1", attempt="c1")
RELEASES = row("releasing", incarnation="i1", checkpoint="c1")
RETURNS = row("resuming", incarnation="i1", checkpoint="c1")
RUNS = row("running", incarnation="i1")
ENDED = row("stopped", incarnation="i1")  #: by a person


@pytest.mark.parametrize(
    ("trees", "infos", "hub", "its", "expected"),
    [
        # A journal that was lost.
        ([tree("running")], [], "running", None, "running"),
        ([tree("napping")], [], "running", None, "napping"),
        ([tree("running")], [], "stopped", None, "running"),
        ([tree("running")], [], "spawning", None, None),
        ([tree("capturing")], [], "running", None, "running"),
        ([tree("captured", "c1")], [saved(1)], "running", None, "releasing"),
        ([tree("captured", "c1")], [saved(1)], "stopped", None, "releasing"),
        ([tree("captured", "c1")], [], "running", None, "running"),
        ([tree("holding")], [saved(1)], "spawning", None, None),
        ([tree("restoring", "c1")], [saved(1)], "stopped", None, None),
        ([], [saved(1)], "stopped", None, "suspended"),
        ([], [saved(1)], "running", None, None),
        ([], [saved(1)], "spawning", None, None),
        ([], [], "stopped", None, "stopped"),
        # What we have begun.
        ([tree("capturing")], [], "running", SUSPENDS, "suspending"),
        ([tree("capturing")], [], "running", RUNS, "suspending"),
        ([tree("capturing", operation="save")], [], "running", RUNS, "running"),
        ([tree("captured", "c1")], [saved(1)], "running", SUSPENDS, "releasing"),
        ([tree("captured", "c1")], [], "running", SUSPENDS, None),
        ([tree("running")], [], "running", SUSPENDS, "running"),
        ([], [saved(1)], "running", SUSPENDS, "releasing"),
        ([], [], "running", SUSPENDS, "stopped"),
        ([], [saved(1)], "running", RELEASES, None),
        ([], [saved(1)], "stopped", RELEASES, "suspended"),
        ([tree("running")], [saved(1)], "running", RELEASES, "running"),
        ([tree("holding")], [saved(1)], "spawning", RETURNS, None),
        ([tree("running", "c1")], [saved(1)], "spawning", RETURNS, None),
        ([tree("running", "c1")], [saved(1)], "running", RETURNS, "running"),
        ([], [saved(1)], "stopped", RETURNS, "suspended"),
        ([], [saved(1)], "spawning", RETURNS, None),
        ([], [], "stopped", RUNS, "stopped"),
        ([], [], "running", RUNS, None),
        # What a person has ended.
        ([tree("running")], [], "stopped", ENDED, None),
        ([tree("running")], [], "running", ENDED, "running"),
    ],
)
def test_table(trees, infos, hub, its, expected):
    found = phase(trees, infos, hub, its)
    assert (found.phase.value if found else None) == expected


# --- who is silent


@pytest.mark.parametrize("hub", [*HubState, None])
def test_store_that_is_silent_is_not_known_to_have_nothing(hub):
    assert phase([], None, hub) is None
    assert phase([tree("captured", "c1")], None, hub) is None


@pytest.mark.parametrize(("hub", "infos"), [*itertools.product(HubState, [(), None])])
def test_agent_that_is_silent_is_not_known_to_run_nothing(hub, infos):
    assert phase(None, infos, hub) is None
    assert phase([tree("unknown")], infos, hub) is None
    assert phase(None, [saved(1)], hub) is None


def test_hub_that_is_silent_is_not_known_to_have_stopped():
    assert phase([], [saved(1)], None) is None


# --- the current checkpoint


def current(*infos, **said) -> str:
    found = phase([], infos, **said)
    return found.saved.id if found.saved else ""


def test_newest_counts_and_its_stamp_says_which_that_is():
    assert current(saved(3, term=1), saved(2, term=2)) == "c2"


def test_what_is_set_aside_is_not_current_nor_what_it_came_from():
    assert current(saved(1), saved(2, aside=ASIDE, word=(1, 1))) == ""
    assert current(saved(1), saved(2), c2=LEFT) == ""


def test_what_was_saved_since_is_current():
    assert current(saved(1, aside=ASIDE, word=(1, 1)), saved(2)) == "c2"


def test_older_one_that_was_chosen_since_is_current():
    left = saved(2, aside=ASIDE, word=(1, 1))
    assert current(saved(1, word=(1, 2)), left) == "c1"
    assert current(saved(1), left, c1=CHOSEN) == "c1"
    assert current(saved(1), saved(2), c1=CHOSEN, c2=LEFT) == "c1"


def test_last_word_counts():
    assert current(saved(1, word=(1, 2)), saved(2, aside=ASIDE, word=(1, 3))) == ""
    assert current(saved(1, word=(1, 2)), saved(2), c2=LEFT) == ""


def test_to_go_on_from_an_older_one_is_to_choose_it():
    left = saved(2, aside=ASIDE, word=(1, 1))
    assert current(saved(1, gone_on=BACK, word=(1, 2)), left) == "c1"
    assert current(saved(1), left, c1=Mark(gone_on=BACK)) == "c1"
    left = saved(2, aside=ASIDE, word=(1, 3))
    assert current(saved(1, gone_on=BACK, word=(1, 2)), left) == ""


def test_another_session_of_that_name_says_nothing_of_this_one():
    other = saved(2, aside=ASIDE, word=(1, 1))
    assert (
        current(saved(1), CheckpointInfo(**{**fields(other), "session": "t"})) == "c1"
    )


def test_what_is_older_than_what_was_decided_about_is_not_current():
    """Its user has stopped what came after it, or has been asked about it."""
    ended = row("stopped", incarnation="i2", stamp=(0, 2))
    assert phase([], [saved(1)], its=ended).phase is Phase.STOPPED
    assert phase([], [saved(1), saved(3)], its=ended).saved.id == "c3"


def test_while_it_runs_it_is_what_the_session_goes_back_to():
    point = CheckpointInfo(**{**fields(saved(3, goes_on=True)), "incarnation": "i1"})
    runs = [tree("running", "c9", origin="c2")]
    assert phase(runs, [saved(1), saved(2)]).saved.id == "c2"
    assert phase(runs, [saved(2), point]).saved.id == "c3"
    assert phase(runs, [saved(4)]).saved is None


def test_session_that_ends_goes_back_to_what_it_came_from_or_to_its_save_point():
    point = CheckpointInfo(**{**fields(saved(3, goes_on=True)), "incarnation": "i1"})
    ended = row("running", incarnation="i1", checkpoint="c2", stamp=(0, 3))
    assert phase([], [saved(1), saved(2)], its=ended).saved.id == "c2"
    forgotten = row("running", incarnation="i1", stamp=(0, 3))
    assert phase([], [saved(1), point], its=forgotten).saved.id == "c3"


def test_what_is_left_of_a_suspend_that_was_taken_back_is_better_than_nothing():
    """The store was away as it was to be deleted, and its programs have ended since."""
    ended = row("running", incarnation="i1", stamp=(0, 1))
    assert phase([], [saved(1)], its=ended).saved.id == "c1"
    assert phase([], [saved(1)], its=ended, c1=LEFT).phase is Phase.STOPPED


def test_what_it_is_suspended_in_and_cannot_be_seen_is_not_passed_over():
    suspended = row("suspended", incarnation="i2", checkpoint="c2", stamp=(0, 2))
    found = phase([], [saved(1)], its=suspended)
    assert (found.phase, found.saved) == (Phase.SUSPENDED, None)
    assert not differs(suspended, found, Observed((), (saved(1),), None))


# --- whether its user is asked
def asked(*, ruled=False, said=None, **more) -> bool:
    return went_on(saved(1, **more), {"c1": said} if said else {}, ruled=ruled)


def test_save_point_comes_back_only_by_a_word():
    assert asked(goes_on=True)
    assert not asked(goes_on=True, word=(1, 1))
    assert not asked(goes_on=True, said=CHOSEN)
    assert not asked()


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("ruled", [False, True])
def test_what_a_session_has_gone_on_from_is_asked_about_where_it_is_kept(
    goes_on, ruled
):
    """It is kept until there is a newer one where a rule saves the session."""
    told = Mark(gone_on=BACK)
    assert asked(goes_on=goes_on, ruled=ruled, gone_on=BACK, word=(1, 1)) is ruled
    assert asked(goes_on=goes_on, ruled=ruled, said=told) is ruled
    assert not asked(ruled=ruled, said=CHOSEN, gone_on=BACK, word=(1, 1))

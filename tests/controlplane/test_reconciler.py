"""Every combination of journal, tree and Hub has an action, and none loses work."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    Failure,
    HubState,
    Phase,
    SessionKey,
    Tree,
    TreeState,
)
from jupyterhub_gpu_reclaim.controlplane.phase import Observed
from jupyterhub_gpu_reclaim.controlplane.session import Intent, SessionRow
from jupyterhub_gpu_reclaim.controlplane.settings import Settings
from jupyterhub_gpu_reclaim.controlplane.settle import Action, ActionKind, settle

KEY = SessionKey("ada")
NOW = 1000.0
LIMITS = Settings(release_limit=60.0)
R, S, P, G = (
    HubState.RUNNING,
    HubState.STOPPED,
    HubState.SPAWNING,
    HubState.STOPPING,
)
HUBS = (*HubState, None)
#: Acts that end programs.
ENDING = {ActionKind.KILL, ActionKind.RELEASE}


def row(phase: str, **more) -> SessionRow:
    more = {"since": 990.0, "incarnation": "i1", "checkpoint": "c1", **more}
    more = {"stamp": (0, 1), **more}
    return SessionRow(key=KEY, phase=Phase(phase), **more)


def tree(state: str, incarnation: str = "i1", checkpoint: str = "c1", **more) -> Tree:
    return Tree(
        incarnation=incarnation,
        key=KEY,
        state=TreeState(state),
        init_pid=7,
        checkpoint=checkpoint,
        **more,
    )


def info(name: str = "c1", generation: int = 0) -> CheckpointInfo:
    return CheckpointInfo(
        id=name,
        key=KEY,
        incarnation="i1",
        generation=generation or int(name.strip("c")),
        created=1.0,
        logical_bytes=1,
        stored_bytes=1,
    )


def act(row: SessionRow, hub, *trees: Tree, saved=("c1",)) -> Action:
    observed = Observed(trees, tuple(info(s) for s in saved), hub)
    return settle(row, observed, NOW, LIMITS)


def found(action: Action) -> ActionKind | Phase:
    """What is to be done; of what is to be taken into the row the phase."""
    return action.phase or action.kind


LATE = {"since": 900.0}
TABLE = [
    # RUNNING
    (row("running"), R, [tree("running")], ActionKind.READY),
    (row("running"), R, [tree("captured")], Phase.RELEASING),
    (row("running"), S, [tree("captured")], Phase.RELEASING),
    (row("running"), S, [tree("captured", checkpoint="cx")], ActionKind.THAW),
    (row("running"), G, [tree("captured", checkpoint="cx")], ActionKind.NOTHING),
    (row("running"), R, [tree("capturing")], Phase.SUSPENDING),
    # Its container was started again.
    (row("running"), R, [tree("holding")], ActionKind.KILL),
    (row("napping"), S, [tree("holding")], ActionKind.KILL),
    (row("running"), P, [tree("holding")], ActionKind.NOTHING),
    (row("running"), R, [tree("running", "i2")], Phase.RUNNING),
    (row("running"), S, [], Phase.SUSPENDED),
    (row("running", checkpoint=""), S, [], Phase.SUSPENDED),
    (row("running"), R, [], ActionKind.NOTHING),
    (row("running"), P, [], ActionKind.NOTHING),
    (row("running"), R, [tree("running"), tree("holding", "i2")], ActionKind.KILL),
    (
        row("running"),
        R,
        [tree("running"), tree("running", "i2", "")],
        ActionKind.REPORT,
    ),
    (
        row("running"),
        R,
        [tree("running"), tree("running", "i2", "c9")],
        ActionKind.REPORT,
    ),
    (row("running"), R, [tree("running"), tree("running", "i2")], ActionKind.KILL),
    (row("running"), S, [tree("running"), tree("running", "i2", "")], ActionKind.READY),
    (row("running"), R, [tree("captured", "i2", "c2")], Phase.RUNNING),
    # NAPPING, and trees that nap
    (row("napping"), R, [tree("napping")], ActionKind.READY),
    (row("napping"), None, [tree("napping")], ActionKind.READY),
    (row("running"), R, [tree("napping")], Phase.NAPPING),
    (row("napping"), R, [tree("running")], Phase.RUNNING),
    (row("napping"), None, [tree("running")], Phase.RUNNING),
    (row("napping"), R, [tree("captured")], Phase.RELEASING),
    (row("napping"), R, [tree("running", "i2")], Phase.RUNNING),
    (row("napping"), S, [], Phase.SUSPENDED),
    (row("napping", checkpoint=""), S, [], Phase.SUSPENDED),
    (row("napping"), R, [tree("napping"), tree("holding", "i2")], ActionKind.KILL),
    (
        row("running"),
        R,
        [tree("running"), tree("napping", "i2", "")],
        ActionKind.REPORT,
    ),
    (row("running"), R, [tree("napping", "i2")], Phase.NAPPING),
    (row("suspending"), R, [tree("napping")], Phase.NAPPING),
    (row("releasing"), R, [tree("napping")], Phase.NAPPING),
    (row("suspended"), R, [tree("napping")], Phase.NAPPING),
    (row("suspended"), S, [tree("napping")], Phase.NAPPING),
    (row("suspended"), S, [tree("napping", checkpoint="")], Phase.NAPPING),
    (row("suspended"), S, [tree("running", ending=True)], ActionKind.NOTHING),
    (row("suspended", intent=Intent.RESUME), S, [tree("running")], ActionKind.NOTHING),
    (row("resuming"), R, [tree("napping")], Phase.NAPPING),
    (row("stopped"), R, [tree("napping")], Phase.NAPPING),
    (row("stopped"), S, [tree("napping")], ActionKind.KILL),
    # SUSPENDING
    (row("suspending"), R, [tree("capturing")], ActionKind.FOLLOW),
    (row("suspending"), R, [tree("captured")], Phase.RELEASING),
    (row("suspending"), R, [tree("captured", checkpoint="cx")], ActionKind.THAW),
    (row("suspending"), R, [tree("running")], Phase.RUNNING),
    (row("suspending", attempt="c1"), R, [], Phase.RELEASING),
    (row("suspending", attempt="c2"), S, [], Phase.SUSPENDED),
    (row("suspending", attempt="c2", checkpoint=""), S, [], Phase.SUSPENDED),
    # RELEASING
    (row("releasing"), R, [tree("captured")], ActionKind.STOP_AT_HUB),
    (row("releasing"), R, [], ActionKind.STOP_AT_HUB),
    (row("releasing"), G, [tree("captured")], ActionKind.WAIT),
    (row("releasing", **LATE), G, [tree("captured")], ActionKind.RELEASE),
    (row("releasing"), S, [tree("captured")], ActionKind.RELEASE),
    (row("releasing"), P, [tree("captured")], ActionKind.RELEASE),
    (row("releasing"), S, [], Phase.SUSPENDED),
    (row("releasing", **LATE), R, [tree("captured")], ActionKind.THAW),
    (row("releasing", **LATE), None, [tree("captured")], ActionKind.THAW),
    (row("releasing"), None, [tree("captured")], ActionKind.WAIT),
    (row("releasing"), S, [tree("running")], Phase.RUNNING),
    (row("releasing"), HubState.UNSETTLED, [tree("captured")], ActionKind.THAW),
    (row("releasing"), HubState.UNSETTLED, [], ActionKind.WAIT),
    (row("releasing", checkpoint="cx"), S, [tree("captured")], Phase.RELEASING),
    (row("releasing"), R, [tree("running", "i2")], Phase.SUSPENDED),
    (row("releasing"), R, [tree("capturing", "i2")], Phase.SUSPENDED),
    # SUSPENDED
    (row("suspended"), R, [tree("capturing", "i2", "c2")], Phase.RUNNING),
    (row("suspended"), R, [tree("captured", "i2", "c2")], Phase.RUNNING),
    (row("suspended"), S, [], ActionKind.NOTHING),
    (row("suspended"), R, [], ActionKind.STOP_AT_HUB),
    (row("suspended"), R, [tree("running", "i2")], Phase.RUNNING),
    (row("suspended"), S, [tree("running")], Phase.RUNNING),
    (row("suspended"), S, [tree("running", "i2")], Phase.RUNNING),
    (row("suspended"), S, [tree("restoring", "i2")], ActionKind.KILL),
    (row("suspended"), S, [tree("holding", "i2", "")], ActionKind.KILL),
    (row("suspended"), P, [tree("holding", "i2", "")], ActionKind.NOTHING),
    (row("suspended"), S, [tree("captured")], Phase.RELEASING),
    (row("suspended"), S, [tree("running", "i2", "")], Phase.RUNNING),
    # What it is captured as may be nowhere else; the other one is first.
    (
        row("suspended"),
        S,
        [tree("capturing"), tree("captured", "i2", "cx")],
        ActionKind.NOTHING,
    ),
    # RESUMING
    (row("resuming"), R, [tree("capturing", checkpoint="c2")], Phase.RUNNING),
    (row("resuming"), S, [tree("captured", checkpoint="c2")], Phase.RUNNING),
    (row("resuming"), R, [tree("running", "i2")], Phase.RUNNING),
    (
        row("resuming", placed=True),
        P,
        [tree("holding", checkpoint="")],
        ActionKind.FOLLOW,
    ),
    (row("resuming"), P, [tree("holding", checkpoint="")], ActionKind.WAIT),
    (row("resuming"), P, [tree("restoring")], ActionKind.FOLLOW),
    (row("resuming"), P, [tree("running")], ActionKind.WAIT),
    (row("resuming"), R, [tree("running")], Phase.RUNNING),
    (row("resuming"), S, [tree("running")], Phase.RUNNING),
    (row("resuming"), S, [tree("holding")], ActionKind.KILL),
    (
        row("resuming", placed=True),
        P,
        [tree("holding"), tree("running", "i2", "")],
        ActionKind.KILL,
    ),
    (row("resuming"), S, [], Phase.SUSPENDED),
    (row("resuming"), P, [], ActionKind.WAIT),
    (row("resuming"), R, [], Phase.SUSPENDED),
    (
        row("resuming", placed=True),
        P,
        [tree("holding", failure=Failure(code="x", message="x"))],
        ActionKind.KILL,
    ),
    # STOPPED, or no row at all
    (row("stopped"), R, [tree("running")], Phase.RUNNING),
    (row("stopped"), P, [tree("running")], ActionKind.NOTHING),
    (row("stopped"), S, [tree("running", checkpoint="")], ActionKind.KILL),
    (row("stopped"), S, [tree("running", "i2", "")], Phase.RUNNING),
    (row("stopped"), S, [tree("running", "i2", "c1")], Phase.RUNNING),
    (row("stopped"), S, [tree("restoring", "i2", "c1")], ActionKind.KILL),
    (row("stopped"), P, [tree("restoring", "i2", "c1")], ActionKind.NOTHING),
    (row("stopped"), S, [tree("restoring", "i2", "cx")], ActionKind.NOTHING),
    (row("stopped"), S, [tree("captured")], Phase.RELEASING),
    (row("stopped"), R, [tree("captured", "i2", "cx")], Phase.RUNNING),
    (row("stopped"), S, [tree("captured", "i2", "cx")], Phase.RUNNING),
    (row("stopped"), G, [tree("captured", "i2", "cx")], ActionKind.NOTHING),
    (row("suspended"), S, [tree("captured", "i2", "cx")], Phase.RUNNING),
    (row("suspended"), P, [tree("captured", "i2", "cx")], ActionKind.NOTHING),
    (row("stopped", checkpoint=""), S, [tree("captured")], ActionKind.KILL),
    (row("stopped", checkpoint=""), P, [tree("captured")], ActionKind.NOTHING),
    (row("stopped", checkpoint=""), R, [tree("captured")], ActionKind.NOTHING),
    (row("suspended", checkpoint="c2"), S, [tree("captured")], ActionKind.KILL),
    (row("stopped"), S, [], ActionKind.NOTHING),
]


@pytest.mark.parametrize(
    ("row", "hub", "trees", "do"), TABLE, ids=[f"{n}" for n in range(len(TABLE))]
)
def test_settle_combination_of_the_table_has_its_act(row, hub, trees, do):
    assert found(act(row, hub, *trees)) is do


NEWER = [
    # the journal knows c1 (generation 1) at most; c2 is in the store
    (SessionRow(key=KEY), S, [], Phase.SUSPENDED),
    (SessionRow(key=KEY), R, [], ActionKind.NOTHING),
    (row("stopped"), S, [], Phase.SUSPENDED),
    (row("stopped", stamp=(0, 2)), S, [], ActionKind.NOTHING),
    (row("running"), S, [], Phase.SUSPENDED),
    (row("running", stamp=(0, 2)), S, [], Phase.SUSPENDED),
    (row("running"), R, [tree("running")], Phase.RUNNING),  # it is older
    (row("running", stamp=(0, 2)), R, [tree("running")], ActionKind.READY),
    (row("suspending", attempt="c3"), S, [], Phase.SUSPENDED),
    (row("suspending", attempt="c2"), S, [], Phase.RELEASING),
    (row("suspended"), S, [], Phase.SUSPENDED),
    (row("suspended", stamp=(0, 2)), S, [], ActionKind.NOTHING),
    (row("suspended"), S, [tree("captured", "i2", "c2")], Phase.RELEASING),
    (row("suspended"), S, [tree("running", "i2", "c2")], Phase.RUNNING),
    (row("suspended"), R, [tree("running", "i2", "c2")], Phase.RUNNING),
]


@pytest.mark.parametrize(
    ("row", "hub", "trees", "do"), NEWER, ids=[f"{n}" for n in range(len(NEWER))]
)
def test_settle_checkpoint_that_the_journal_has_missed_has_its_act(row, hub, trees, do):
    done = act(row, hub, *trees, saved=("c1", "c2"))
    assert found(done) is do
    if do in {Phase.SUSPENDED, Phase.RELEASING} and row.stamp < (0, 2):
        assert done.saved.id == "c2"


#: There is a pod, and the agent of its node does not answer.
UNKNOWN = (tree("unknown"),)


@pytest.mark.parametrize("phase", list(Phase))
def test_settle_silent_agent_settles_nothing(phase):
    for hub in HUBS:
        for trees, saved in ((None, ()), ((), None), (None, None), (UNKNOWN, ())):
            observed = Observed(trees, saved, hub)
            assert settle(row(phase), observed, NOW, LIMITS).kind in {
                ActionKind.NOTHING,
                ActionKind.WAIT,
            }


_TREES = st.lists(
    st.builds(
        tree,
        st.sampled_from([state.value for state in TreeState]),
        st.sampled_from(["i1", "i2"]),
        st.sampled_from(["", "c1", "c2"]),
    ),
    max_size=2,
)
_ROWS = st.builds(
    row,
    st.sampled_from([phase.value for phase in Phase]),
    since=st.sampled_from([0.0, 900.0, 990.0]),
    checkpoint=st.sampled_from(["", "c1"]),
    attempt=st.sampled_from(["", "c2"]),
    placed=st.booleans(),
)


@settings(max_examples=500)
@given(_ROWS, st.sampled_from(HUBS), _TREES, st.sets(st.sampled_from(["c1", "c2"])))
def test_settle_any_combination_never_ends_work_that_is_not_saved(
    row, hub, trees, saved
):
    done = act(row, hub, *trees, saved=sorted(saved))
    if done.kind not in ENDING or done.tree is None:
        return
    stopped_by_its_user = (
        row.phase is Phase.STOPPED and done.tree.incarnation == row.incarnation
    )
    assert (
        done.tree.state in {TreeState.HOLDING, TreeState.RESTORING}
        or done.tree.checkpoint in saved
        or stopped_by_its_user
        # it is a copy of what is saved
        or (row.phase is Phase.RESUMING and row.checkpoint in saved)
        # the agent itself refuses a release of what is not committed
        or (done.kind is ActionKind.RELEASE and done.tree.state is TreeState.CAPTURED)
    )


@pytest.mark.parametrize(
    ("phase", "state"), list(itertools.product(Phase, [None, *TreeState]))
)
def test_settle_without_the_hub_ends_nothing(phase, state):
    trees = [tree(state.value)] if state else []
    for since in (900.0, 990.0):
        done = act(row(phase, since=since), None, *trees)
        assert phase is Phase.RESUMING or done.kind not in ENDING
        assert done.kind is not ActionKind.STOP_AT_HUB


@pytest.mark.parametrize("phase", ["suspended", "running", "suspending"])
def test_what_is_being_restored_is_waited_for_before_anything_is_judged(phase):
    """From a checkpoint that a journal of before does not know, after it was put back.

    Set aside now, it would be passed over once that restore has failed.
    """
    from_unknown = tree("restoring", "i2", "c2")
    action = act(row(phase), S, from_unknown, saved=("c1", "c2"))
    assert action.kind in {ActionKind.NOTHING, ActionKind.WAIT}
    after = act(row(phase), S, saved=("c1", "c2"))
    assert after.phase is Phase.SUSPENDED

"""What a start and a stop are answered, from journal, agent, store and pointer."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import (
    Aside,
    HubState,
    Phase,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.phase import Observed
from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, Intent, Keeping
from jupyterhub_gpu_reclaim.controlplane.settle import (
    ActionKind,
    AnswerKind,
    Asked,
    Want,
    settle,
)
from tests.controlplane.test_reconciler import LIMITS, NOW, found, info, row, tree

A, Q = ActionKind, AnswerKind
FOUND = codec.failure_of(Refused(Reason.SAVED_FOUND, when=""))
OLDER = codec.failure_of(Refused(Reason.SAVED_OLDER, when=""))


def kept(name: str, keeping: Keeping = Keeping.CURRENT) -> CheckpointRow:
    return CheckpointRow(info=info(name), keeping=keeping)


def answer(asked: Asked, row, trees=(), saved=("c1",), known=("c1",), **more):
    """The action, where the journal has ``known`` and the store has ``saved``.

    What the store shows has its row by then.
    """
    infos = None if saved is None else tuple(info(each, **more) for each in saved)
    trees = None if trees is None else tuple(trees)
    names = sorted({*known, *(saved or ())})
    rows = asked.kept or tuple(kept(name) for name in names)
    observed = Observed(trees, infos, HubState.SPAWNING)
    return settle(row, observed, NOW, LIMITS, asked._replace(kept=rows))


def start(**facts) -> Asked:
    return Asked(Want.START, "new", listed=True, **facts)


def stop(incarnation: str = "i1", **facts) -> Asked:
    return Asked(Want.STOP, incarnation, listed=True, **facts)


HUBS = start(checkpoint="c1", remembered=True)
STOPPED = row("stopped", checkpoint="")
LOST = row("stopped", checkpoint="", stamp=(0, 0))  #: with the journal


LATER = row("running", stamp=(0, 2))  #: what is saved as c2 was passed over

#: c2 is in the store, and the journal knows it, or not.
BOTH = {"saved": ("c1", "c2"), "known": ("c1", "c2")}
NEWER = {"saved": ("c1", "c2")}


def at(*trees, **more):
    return {"trees": trees, **more}


@pytest.mark.parametrize(
    ("asked", "row", "facts", "kind"),
    [
        # What is under way.
        (start(), row("suspending"), {}, Q.REFUSE),
        (start(), row("releasing"), at(tree("captured")), A.RELEASE),
        (start(), row("releasing"), {}, Phase.SUSPENDED),
        (start(), row("releasing"), at(tree("running")), Phase.RUNNING),
        (start(), row("releasing"), at(tree("capturing")), A.WAIT),
        (start(), row("releasing"), {"trees": None}, A.UNANSWERED),
        (start(), row("resuming", incarnation="new"), {"trees": None}, Q.RETURN),
        (start(), row("resuming"), at(tree("running")), Q.JOIN),
        (start(), row("resuming"), at(tree("holding")), A.KILL),
        (start(), row("resuming"), at(tree("capturing")), Q.REFUSE),
        (start(), row("resuming"), at(tree("captured")), Phase.RELEASING),
        (start(), row("suspended"), at(tree("restoring", "i9")), Q.REFUSE),
        (start(), row("resuming"), at(), A.KILL),
        (start(), row("resuming"), {"trees": None}, A.UNANSWERED),
        # What is there.
        (start(), row("suspended"), at(tree("running", "i9")), Q.JOIN),
        (start(), STOPPED, at(tree("napping", "i9"), saved=None), Q.JOIN),
        (start(), STOPPED, at(tree("captured", "i9"), tree("running", "i8")), Q.JOIN),
        (start(), LOST, at(tree("captured"), known=()), Phase.RELEASING),
        (start(), STOPPED, at(tree("captured")), A.KILL),
        (start(), row("running"), at(tree("captured", "i9", "c2")), A.THAW),
        (start(), LATER, at(tree("captured", "i9", "c2"), **BOTH), A.KILL),
        (
            start(),
            row("running", checkpoint=""),
            at(tree("captured")),
            Phase.RELEASING,
        ),
        (start(), STOPPED, at(tree("captured"), saved=()), A.THAW),
        (start(), row("suspended"), at(tree("capturing", "i9")), Q.REFUSE),
        (start(), row("suspended"), at(tree("captured")), Phase.RELEASING),
        (
            start(),
            row("suspended"),
            at(tree("captured", "i9", "c2"), **NEWER),
            Phase.RELEASING,
        ),
        (start(), row("suspended"), at(tree("captured", "i9", "c9")), A.THAW),
        (
            start(),
            row("suspended", checkpoint="c2", stamp=(0, 2)),
            at(tree("captured"), **BOTH),
            A.KILL,
        ),
        # Something newer is saved, and what is older must end first.
        (start(), row("suspended"), at(tree("captured"), **NEWER), Phase.RELEASING),
        (
            start(),
            row("suspended"),
            at(tree("restoring", "i9", "c9"), **NEWER),
            Q.REFUSE,
        ),
        (start(), STOPPED, at(tree("restoring")), Q.REFUSE),
        (start(), row("suspended"), at(tree("holding", "i9")), A.KILL),
        # What is saved.
        (start(), row("running"), {**NEWER}, Phase.SUSPENDED),
        (start(), row("suspended"), {**NEWER}, Phase.SUSPENDED),
        (
            start(),
            row("suspended", checkpoint="c3", stamp=(0, 3)),
            {"saved": ("c2", "c3"), "known": ("c3",)},
            Q.RETURN,
        ),
        (
            start(checkpoint="c2"),
            row("suspended", checkpoint="c3", stamp=(0, 3)),
            {"saved": ("c2", "c3"), "known": ("c3",)},
            Q.RETURN,
        ),
        (start(), STOPPED, {"saved": ("c2",), "known": ()}, Phase.SUSPENDED),
        (HUBS, row("suspended"), {}, Q.RETURN),
        (start(), row("suspended", bring_back="c9"), {"trees": None}, A.BRING_BACK),
        (start(), row("stopped", bring_back="c9"), {}, A.BRING_BACK),
        (start(), STOPPED, {}, Q.COLD),
        (start(checkpoint="c9"), STOPPED, {}, Q.MISSING),
        (start(checkpoint="c9", stamp=(0, 1)), STOPPED, {}, Q.COLD),
        (start(checkpoint="c9", stamp=(0, 2)), STOPPED, {}, Q.MISSING),
        # Doubts.
        (start(checkpoint="c9"), row("suspended"), {}, Q.ASK),
        (start(checkpoint="c9"), row("suspended", intent=Intent.RESUME), {}, Q.RETURN),
        (start(), row("suspended", failure=FOUND), {}, Q.ASK),
        (HUBS, row("suspended", failure=FOUND), {}, Q.RETURN),
        # Silence.
        (start(), STOPPED, {"saved": None}, A.UNANSWERED),
    ],
)
def test_start(asked, row, facts, kind):
    assert found(answer(asked, row, **facts)) is kind


SILENT = {"trees": None, "saved": None}


@pytest.mark.parametrize(
    ("facts", "row", "silence", "kind"),
    [
        ({}, row("stopped", checkpoint="", stamp=(0, 0)), Reason.NO_AGENT, Q.COLD),
        ({}, STOPPED, Reason.AGENT_UNREACHABLE, Q.COLD),
        ({"listed": False}, STOPPED, Reason.AGENT_UNREACHABLE, A.UNANSWERED),
        ({"listed": False}, STOPPED, Reason.NO_AGENT, Q.COLD),
        ({}, STOPPED, Reason.NODE_SILENT, A.UNANSWERED),
        ({}, STOPPED, Reason.ENDING_UNSEEN, A.UNANSWERED),
        ({"remembered": True}, STOPPED, Reason.AGENT_UNREACHABLE, A.UNANSWERED),
        ({"checkpoint": "c9"}, STOPPED, Reason.AGENT_UNREACHABLE, A.UNANSWERED),
        ({}, row("running"), Reason.AGENT_UNREACHABLE, A.UNANSWERED),
        ({}, row("running"), Reason.ENDING_UNSEEN, A.UNANSWERED),
        ({"checkpoint": "c1"}, row("suspended"), Reason.ENDING_UNSEEN, Q.RETURN),
        ({}, row("suspended"), Reason.ENDING_UNSEEN, A.UNANSWERED),
        # Nobody has deleted its pod there: both may be of a backup.
        ({"checkpoint": "c1"}, row("suspended"), Reason.NODE_SILENT, A.UNANSWERED),
        (
            {"checkpoint": "c1", "listed": False},
            row("suspended"),
            Reason.ENDING_UNSEEN,
            A.UNANSWERED,
        ),
    ],
)
def test_start_in_silence(facts, row, silence, kind):
    asked = Asked(Want.START, "new", silence=silence, **{"listed": True, **facts})
    assert answer(asked, row, **SILENT).kind is kind


def test_start_in_silence_what_is_left_or_saved_is_not_passed_over():
    silent = start(silence=Reason.AGENT_UNREACHABLE)
    left = at(tree("holding", "i9"), saved=None)
    assert answer(silent, STOPPED, **left).kind is A.UNANSWERED
    saved = {"trees": None, "saved": ("c1",), "known": ()}
    assert answer(silent, LOST, **saved).kind is A.UNANSWERED


def test_return_beside_a_silent_node_not_where_hub_and_journal_are_both_older():
    """What was saved since came back there, perhaps, and is newer than that."""
    silent = HUBS._replace(silence=Reason.ENDING_UNSEEN)
    known = {"trees": None, "saved": ("c1",), "known": ("c1",)}
    assert answer(silent, row("suspended"), **known).kind is Q.RETURN
    older = {"trees": None, **NEWER, "known": ("c1",)}
    assert answer(silent, row("suspended"), **older).kind is A.UNANSWERED


@pytest.mark.parametrize(
    ("asked", "row", "facts", "kind"),
    [
        # The journal's own.
        (stop(), row("suspending"), {}, Q.REFUSE),
        (stop(), row("releasing"), {"trees": None}, Q.SAVED),
        (stop(), row("suspended"), {"trees": None}, Q.SAVED),
        (stop(), row("stopped", checkpoint=""), {}, Q.END),
        (stop(), row("stopped"), at(tree("running", "i9")), Q.KEEP),
        (stop(), row("running"), at(tree("capturing")), Q.REFUSE),
        (stop(), row("running"), at(tree("captured")), Phase.RELEASING),
        (stop(), row("running"), at(tree("captured"), saved=()), Q.KEEP),
        (stop(came_back=True), row("resuming"), {"trees": None}, Phase.RUNNING),
        (stop(), row("resuming"), at(tree("running")), Phase.RUNNING),
        (stop(), row("resuming"), at(tree("captured")), Q.REFUSE),
        (stop(), row("resuming"), at(tree("holding")), Q.SAVED),
        (stop(), row("resuming"), {}, A.KILL),
        (stop(), row("running"), at(tree("running"), saved=None), Q.END),
        (stop(), row("running"), {"trees": None}, A.UNANSWERED),
        (stop(), row("running"), {"saved": None}, A.UNANSWERED),
        (stop(), row("running"), at(tree("running", "i9")), Q.KEEP),
        (stop(), row("running"), {**NEWER}, Phase.SUSPENDED),
        (stop(), row("running"), {}, Phase.SUSPENDED),
        (stop(), row("running", checkpoint=""), {}, Phase.SUSPENDED),
        (stop(), row("running", checkpoint=""), {"saved": ()}, Q.END),
        # Of another incarnation.
        (stop("old"), row("running"), at(tree("running", "old")), Q.END),
        (stop("old"), row("running"), at(tree("running")), Q.KEEP),
        (
            stop("old"),
            row("running"),
            at(tree("running"), tree("captured", "old")),
            Q.KEEP,
        ),
        (
            stop("old"),
            STOPPED,
            at(tree("captured", "old", "c2"), **NEWER),
            Phase.RELEASING,
        ),
        (stop(), STOPPED, at(tree("captured")), Q.END),
        (stop("old"), STOPPED, at(tree("captured", "old")), Q.END),
        (
            stop("old"),
            row("suspended", checkpoint="c2", stamp=(0, 2)),
            at(tree("captured", "old"), **BOTH),
            Q.KEEP,
        ),
        (
            stop("old"),
            row("resuming"),
            at(tree("captured", "old", "c2"), **NEWER),
            Q.KEEP,
        ),
        (stop("old"), STOPPED, at(tree("captured", "old"), saved=()), Q.KEEP),
        (stop("old"), STOPPED, {**NEWER}, Q.KEEP),
        (stop("old"), row("suspended"), {}, Q.KEEP),
        (stop("old"), STOPPED, {}, Q.END),
        (stop("old"), STOPPED, {"trees": None}, A.UNANSWERED),
        (stop("old"), STOPPED, {"saved": None}, A.UNANSWERED),
    ],
)
def test_stop(asked, row, facts, kind):
    assert found(answer(asked, row, **facts)) is kind


def test_stop_of_one_that_was_saved_meanwhile_is_suspended():
    """The journal is older, and agent and store know that it was released."""
    saved = msgspec.structs.replace(info("c2"), incarnation="old")
    observed = Observed((), (info("c1"), saved), HubState.SPAWNING)
    action = settle(STOPPED, observed, NOW, LIMITS, stop("old", kept=(kept("c1"),)))
    assert (action.phase, action.saved) == (Phase.SUSPENDED, saved)


def test_stop_of_one_that_is_being_saved_is_not_forgotten():
    """Its save goes on behind its copy, and is committed when the Hub has asked."""
    mine = row("running", checkpoint="", intent=Intent.SAVE)
    assert answer(stop(), mine, saved=(), known=()).kind is Q.KEEP
    other = row("running", checkpoint="")
    assert answer(stop(), other, saved=(), known=()).kind is Q.END


@pytest.mark.parametrize("phase", ["releasing", "resuming", "suspending"])
def test_stop_of_one_that_was_saved_waits_for_what_is_under_way(phase):
    """The journal is of before a suspend, and what came of that has ended since."""
    saved = msgspec.structs.replace(info("c2"), incarnation="later")
    observed = Observed((), (info("c1"), saved), HubState.SPAWNING)
    asked = stop("later", kept=(kept("c1"),))
    assert settle(row(phase), observed, NOW, LIMITS, asked).kind is Q.KEEP


def test_stop_what_a_later_session_has_saved_is_not_forgotten():
    """Journal and Hub are of before that session: what they know has ended long ago."""
    later = msgspec.structs.replace(info("c2"), incarnation="i9", session="later")
    observed = Observed((), (later,), HubState.SPAWNING)
    mine = row("running", checkpoint="", stamp=(0, 0), session="mine")
    assert settle(mine, observed, NOW, LIMITS, stop()).kind is Q.KEEP


def test_return_of_what_is_gone_is_the_hubs_or_a_question():
    mine = row("suspended", checkpoint="c3", stamp=(0, 3))

    def gone(asked, mine=mine, *saved):
        names = tuple(each.id for each in asked.kept)
        return answer(asked, mine, saved=saved, known=names)

    rows = (kept("c1", Keeping.ASIDE), kept("c3"), kept("c4", Keeping.ASIDE))
    assert gone(start(kept=rows), mine).failure.code == "checkpoint_missing"
    assert gone(start(kept=rows), mine, "c1").failure.code == "saved_older"
    asked = start(kept=rows, checkpoint="c1")
    assert gone(asked, mine, "c1").failure.code == "saved_older"
    agreed = msgspec.structs.replace(mine, failure=OLDER, intent=Intent.RESUME)
    assert gone(asked, agreed, "c1").saved == info("c1")
    newer = start(kept=rows, checkpoint="c4")
    assert gone(newer, mine, "c1", "c4").saved == info("c4")
    another = msgspec.structs.replace(info("c1"), account="8")
    theirs = msgspec.structs.replace(kept("c1", Keeping.ASIDE), info=another)
    mine = msgspec.structs.replace(mine, account="7")
    assert (
        gone(start(kept=(theirs, kept("c3"))), mine, "c1").failure.code
        == "checkpoint_missing"
    )


def test_hub_that_remembers_a_newer_state_of_the_session_is_a_reason_to_ask():
    """Journal and store are older than its database, as one volume put back."""
    mine = row("suspended", checkpoint="c3", stamp=(0, 3), session="s1")
    there = (msgspec.structs.replace(info("c3"), session="s1"),)
    rows = (msgspec.structs.replace(kept("c3"), info=there[0]),)
    observed = Observed((), there, HubState.SPAWNING)
    hubs = start(checkpoint="c4", former="s1", remembered=True, kept=rows)

    def asked(stamp, mine=mine):
        return settle(mine, observed, NOW, LIMITS, hubs._replace(stamp=stamp))

    assert asked((0, 4)).failure.code == "saved_older"
    assert asked((0, 2)).kind is Q.RETURN
    assert asked((0, 0)).failure.code == "saved_older"  # the Hub knows none
    found = msgspec.structs.replace(mine, failure=FOUND)
    assert asked((0, 4), found).failure.code == "saved_older"
    assert asked((0, 2), found).kind is Q.RETURN


def every_question():
    """Each phase beside each two trees, with and without what is saved."""
    # Who asks for one session alone is told that an agent is silent.
    states = [None, *(set(TreeState) - {TreeState.UNKNOWN})]
    for phase, one, other in itertools.product(Phase, states, states):
        trees = [tree(one)] if one else []
        trees += [tree(other, "i2", "c2")] if other else []
        for saved in ((), ("c1",), ("c1", "c2"), None):
            for known in ((), ("c1",)):
                yield phase, trees, saved, known


def test_no_question_is_left_open_where_all_have_answered():
    """Each has an answer or something to be done first; and silence is told."""
    seen = set()
    for phase, trees, saved, known in every_question():
        for asked in (start(), HUBS, stop(), stop("i2"), stop("old")):
            action = answer(asked, row(phase), trees, saved, known)
            seen.add(action.kind)
            assert action.kind in {*Q, *ACTS} or saved is None
            if action.kind is A.UNANSWERED:
                assert saved is None
    assert seen >= set(Q) - {Q.ASK, Q.MISSING}


#: What may be done before there is an answer.
ACTS = {
    A.RELEASE,
    A.THAW,
    A.KILL,
    A.TAKE,
    A.WAIT,
    A.BRING_BACK,
}


def test_what_a_person_has_set_aside_is_not_taken_up_where_it_stands_captured():
    """The journal is lost, and what stood there was never released."""
    marked = msgspec.structs.replace(info("c1"), aside=Aside(until=None))
    observed = Observed((tree("captured"),), (marked,), HubState.SPAWNING)
    assert settle(STOPPED, observed, NOW, LIMITS, start()).kind is A.KILL
    assert settle(STOPPED, observed, NOW, LIMITS, stop("i1")).kind is Q.END


def test_no_start_is_cold_beside_a_tree_or_a_checkpoint_that_nobody_has_given_up():
    for phase, trees, saved, known in every_question():
        action = answer(start(), row(phase), trees, saved, known)
        if action.kind is Q.COLD:
            assert not [one for one in trees if one.runs]
            decided = row(phase).stamp
            assert all(info(name).stamp <= decided for name in saved or ())


def test_start_goes_back_to_a_save_point_that_nobody_heard_of():
    """It is of before a suspend that was taken back: the journal knows a later one."""
    point = msgspec.structs.replace(info("c1"), incarnation="i1", goes_on=True)
    observed = Observed((), (point,), HubState.SPAWNING)
    ended = row("running", checkpoint="", incarnation="i1", stamp=(0, 2))
    action = settle(ended, observed, NOW, LIMITS, start())
    assert (action.phase, action.saved) == (Phase.SUSPENDED, point)

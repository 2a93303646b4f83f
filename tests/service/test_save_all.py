"""``save-all``: every session that goes on is saved, before something risky."""

import asyncio
import time

import msgspec
import pytest

from jupyterhub_gpu_reclaim.cli.sessions import save_all
from jupyterhub_gpu_reclaim.cli.sessions.save_all import AT_ONCE, Round, State
from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.models import (
    Failure,
    KeptState,
    Phase,
    SessionFacts,
    SessionKey,
    SessionView,
    Step,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.support.checkpoints import checkpoint
from tests.support.commands import unused

ADA, BOB, CY = SessionKey("ada"), SessionKey("bob", "train"), SessionKey("cy")
BROKEN = Failure(code="not_enough_memory", message="There is no memory.", hint="Look.")
NOW = time.time()


def save_point(key: SessionKey, at: float, id_: str = "c1", **more) -> dict:
    step = Step(step="save", title="Saving", state="done", seconds=60.0)
    info = checkpoint(id_, key, created=at, steps=[step])
    name = more.pop("name", "")
    kept = KeptState(
        id=id_, generation=1, created=at, keeping="superseded", name=name, **more
    )
    return {"checkpoint": id_, "last_suspend": info, "kept": [kept]}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(save_all, "PAUSE", 0.01)


@pytest.fixture
def saves(control):
    """Carries orders to save out, as far as a test does not say otherwise."""
    outcomes: dict[SessionKey, object] = {}
    soon = []
    ordered = control.save

    async def save(key, by, name=""):
        result = outcomes.get(key, "saved")
        if isinstance(result, Exception):
            control.calls.append(("save", key, by))
            raise result
        answer = await ordered(key, by, name)
        count = len([call for call in control.calls if call[0] == "save"])
        facts = msgspec.structs.asdict(control.views[key].facts) | {"intent": ""}

        async def end():
            await asyncio.sleep(0.03)
            after = {"failure": None, **save_point(key, time.time(), f"new{count}")}
            if isinstance(result, Failure):
                after = {"failure": result}
            control.put(key.user, key.server, facts=facts, **after)

        if result is not None:
            soon.append(asyncio.create_task(end()))
        return answer

    control.save = save
    return outcomes


def put(control, key: SessionKey, unused_for: float = 7200, **more) -> None:
    more.setdefault("usage", unused(unused_for))
    control.put(key.user, key.server, incarnation="i1", **more)


# --- the command ---------------------------------------------------------------------
async def test_everything_that_runs_is_saved_and_reported(command, control, saves):
    put(control, ADA)
    put(control, BOB, phase=Phase.NAPPING)
    put(control, CY, phase=Phase.SUSPENDED)
    code, out, err = await command("save-all")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [
        ["ada/", "saved"],
        ["bob/train", "saved"],
    ]
    assert out.splitlines()[-1] == "2 sessions saved, 0 saved already, 0 left."
    assert {call[1] for call in control.calls} == {ADA, BOB}
    assert "ada/: saved (" in err


async def test_what_was_not_used_since_its_save_point_is_not_saved_again(
    command, control, saves
):
    put(control, ADA, 7200, **save_point(ADA, NOW - 3600))
    put(control, BOB, 60, **save_point(BOB, NOW - 3600))
    code, found = await command.json("save-all")
    assert code == 0
    assert [each["state"] for each in found] == ["saved already", "saved"]
    assert [call[1] for call in control.calls] == [BOB]


async def test_one_without_that_name_is_saved_under_it(command, control, saves):
    put(control, ADA, **save_point(ADA, NOW - 3600, name="before 5.5"))
    put(control, BOB, **save_point(BOB, NOW - 3600))
    code, found = await command.json("save-all", "--name", "before 5.5")
    assert (code, found[0]["state"]) == (0, "saved already")
    assert control.calls == [("save", BOB, "root", "before 5.5")]


async def test_what_fails_or_is_refused_is_told_and_stops_no_other(
    command, control, saves
):
    put(control, ADA)
    put(control, BOB)
    put(control, CY)
    saves[ADA] = BROKEN
    saves[BOB] = Refused(Reason.INVALID, what="50 save points have a name.")
    code, out, err = await command("save-all")
    assert code == 1
    assert "1 session saved, 0 saved already, 2 left." in out
    assert "Error: ada/: There is no memory. (not_enough_memory)\n  Look." in err
    assert "Error: bob/train: 50 save points have a name. (invalid)" in err


async def test_what_is_not_saved_at_the_deadline_is_left(command, control, saves):
    put(control, ADA)
    put(control, BOB, phase=Phase.SUSPENDING)
    saves[ADA] = None
    code, out, err = await command("save-all", "--deadline", "0.2s")
    assert (code, "0 sessions saved, 0 saved already, 2 left." in out) == (4, True)
    assert [line.split()[1] for line in out.splitlines()[1:3]] == ["saving", "waiting"]
    assert "again" in err


async def test_restart_of_the_service_is_waited_out(command, control, saves):
    put(control, ADA)
    known, silent = control.sessions, iter([False, True, True])

    def sessions():
        if next(silent, False):
            raise Unreachable(Reason.SERVICE_STARTING)
        return known()

    control.sessions = sessions
    code, found = await command.json("save-all")
    assert (code, found[0]["state"]) == (0, "saved")


async def test_without_a_service_it_fails_and_with_no_session_it_is_done(
    command, control, monkeypatch
):
    assert (await command("save-all"))[:2] == (0, "No session runs.\n")
    monkeypatch.setenv("GPU_RECLAIM_URL", "http://127.0.0.1:1")
    code, _, err = await command("save-all")
    assert (code, "(api_unreachable)" in err) == (3, True)


async def test_users_save_their_own(command, control, saves, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token-ada")
    put(control, ADA)
    put(control, CY)
    code, found = await command.json("save-all")
    assert (code, [each["key"]["user"] for each in found]) == (0, ["ada"])


# --- whose turn it is ----------------------------------------------------------------
def view(user: str, node: str = "", **more) -> SessionView:
    more.setdefault("phase", Phase.RUNNING)
    more.setdefault("usage", unused(7200, memory=1))
    facts = SessionFacts(node=node, intent=more.pop("intent", ""))
    return SessionView(
        key=SessionKey(user), since=1.0, incarnation="i1", facts=facts, **more
    )


def turns(views: list[SessionView]) -> list[str]:
    return [each.key.user for each in Round("").look(views, NOW, 0.0)]


def test_napping_then_idle_and_small_first_and_at_work_last(monkeypatch):
    monkeypatch.setattr(save_all, "AT_ONCE", 5)
    views = [
        view("a", usage=unused(1, memory=1)),
        view("b", usage=None),
        view("c", usage=unused(7200, memory=9)),
        view("d", usage=unused(7200, memory=1, gpu_memory=7)),
        view("e", phase=Phase.NAPPING, usage=unused(7200, memory=99)),
    ]
    assert turns(views) == ["e", "d", "c", "b", "a"]


def test_each_node_has_a_few_turns_and_one_that_hangs_gives_its_own_up():
    views = [view(f"{n}{u}", node=n) for n in ("x", "y") for u in range(AT_ONCE + 1)]
    round_ = Round("")
    first = round_.look(views, NOW, 0.0)
    assert [each.key.user for each in first] == ["x0", "x1", "y0", "y1"]
    for each in first:
        round_.asked(each, 0.0)
    views = [
        view(v.key.user, node=v.facts.node, intent="save" if v in first else "")
        for v in views
    ]
    assert round_.look(views, NOW, 1.0) == []
    late = round_.look(views, NOW, save_all.HANGS + 1.0)
    assert [each.key.user for each in late] == ["x2", "y2"]


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        # only a new save point of the very same start counts
        ({}, save_point(ADA, NOW), State.SAVED),
        (save_point(ADA, 1.0), save_point(ADA, 1.0), State.WAITING),
        ({}, {**save_point(ADA, NOW), "incarnation": "i2"}, State.WAITING),
        # what is suspended meanwhile is safe, too, whoever has ordered it
        ({}, {"phase": Phase.SUSPENDED}, State.SAVED),
        ({}, {"phase": Phase.SUSPENDING}, State.WAITING),
        ({}, {"facts": SessionFacts(intent="suspend")}, State.WAITING),
        ({}, {"facts": SessionFacts(intent="save")}, State.SAVING),
        ({}, {"failure": BROKEN}, State.REFUSED),
        ({}, {"phase": Phase.STOPPED}, State.ENDED),
        ({}, None, State.ENDED),
    ],
)
def test_what_became_of_one_that_was_ordered(before, after, state):
    one = msgspec.structs.replace(view("ada"), **before)
    round_ = Round("")
    round_.look([one], NOW, 0.0)
    round_.asked(one, 0.0)
    later = [] if after is None else [msgspec.structs.replace(one, **after)]
    round_.look(later, NOW, 1.0)
    assert round_.found[ADA].state is state


@pytest.mark.parametrize(
    "usage",
    [
        None,
        unused(7200, busy_kernel="a.ipynb"),
        unused(3630),  # while it was being stored
        msgspec.structs.replace(unused(7200), at=NOW - 4000),  # not looked at since
        msgspec.structs.replace(unused(7200), last_active=None),
    ],
)
def test_what_may_have_been_used_since_is_saved_again(usage):
    one = view("ada", usage=usage, **save_point(ADA, NOW - 3600))
    assert turns([one]) == ["ada"]

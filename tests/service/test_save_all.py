"""``save-all``: every session that goes on is saved, before something risky."""

import asyncio
import time

import msgspec
import pytest

from jupyterhub_gpu_reclaim.cli.sessions.save_all import is_safe, rank
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import (
    Failure,
    KeptState,
    Phase,
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
    save = control.save

    async def late(key, by, name=""):
        if key == BOB:
            await asyncio.sleep(0.2)
        return await save(key, by, name)

    control.save = late
    code, out, _ = await command("save-all")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["ada/", "done"],
        ["bob/train", "done"],
    ]
    # what naps goes first
    assert [call[1] for call in control.calls] == [BOB, ADA]


async def test_what_was_not_used_since_its_save_point_is_not_saved_again(
    command, control, saves
):
    put(control, ADA, 7200, **save_point(ADA, NOW - 3600))
    put(control, BOB, 60, **save_point(BOB, NOW - 3600))
    code, found = await command.json("save-all")
    assert code == 0
    assert [each["how"] for each in found] == ["saved already", "done"]
    assert [call[1] for call in control.calls] == [BOB]


async def test_one_without_that_name_is_saved_under_it(command, control, saves):
    put(control, ADA, **save_point(ADA, NOW - 3600, name="before 5.5"))
    put(control, BOB, **save_point(BOB, NOW - 3600))
    code, found = await command.json("save-all", "--name", "before 5.5")
    assert (code, found[0]["how"]) == (0, "saved already")
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
    assert [line.split()[1] for line in out.splitlines()[1:]] == [
        *("failed", "refused", "done")
    ]
    assert "Error: ada/: There is no memory. (not_enough_memory)\n  Look." in err
    assert "Error: bob/train: 50 save points have a name. (invalid)" in err


async def test_what_is_not_saved_at_the_deadline_is_left(command, control, saves):
    put(control, ADA)
    put(control, BOB, phase=Phase.SUSPENDING)
    saves[ADA] = None
    code, out, err = await command("save-all", "--deadline", "0.2s")
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["waiting"] * 2
    # what is being suspended will be as safe: nobody orders anything of it
    assert (code, [call[1] for call in control.calls]) == (4, [ADA])
    assert "it goes on" in err


async def test_without_a_service_it_fails_and_with_no_session_it_is_done(
    command, control, monkeypatch
):
    assert (await command("save-all"))[:2] == (0, "No session fits.\n")
    monkeypatch.setenv("GPU_RECLAIM_URL", "http://127.0.0.1:1")
    code, _, err = await command("save-all")
    assert (code, "(api_unreachable)" in err) == (3, True)


async def test_users_save_their_own(command, control, saves, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token-ada")
    put(control, ADA)
    put(control, CY)
    code, found = await command.json("save-all")
    assert (code, [each["key"]["user"] for each in found]) == (0, ["ada"])


@pytest.mark.parametrize(
    "more",
    [
        {"usage": None},
        {"usage": unused(7200, busy_kernel="a.ipynb")},
        {"usage": unused(3630)},  # while it was being stored
        # not looked at since
        {"usage": msgspec.structs.replace(unused(7200), at=NOW - 4000)},
        {"usage": msgspec.structs.replace(unused(7200), last_active=None)},
        {"incarnation": "i2"},  # of its former start
    ],
)
def test_what_may_have_been_used_since_is_saved_again(more):
    view = SessionView(
        key=ADA,
        phase=Phase.RUNNING,
        since=1.0,
        incarnation="i1",
        usage=unused(7200),
        **save_point(ADA, NOW - 3600),
    )
    assert is_safe(view, "")
    assert not is_safe(msgspec.structs.replace(view, **more), "")


def test_napping_then_idle_and_small_first_and_at_work_last():
    def view(user: str, **more) -> SessionView:
        more.setdefault("phase", Phase.RUNNING)
        return SessionView(key=SessionKey(user), since=1.0, **more)

    views = [
        view("a", usage=unused(1, memory=1)),
        view("b", usage=None),
        view("c", usage=unused(7200, memory=9)),
        view("d", usage=unused(7200, memory=1, gpu_memory=7)),
        view("e", phase=Phase.NAPPING, usage=unused(7200, memory=99)),
    ]
    turns = sorted(views, key=lambda view: rank(view, NOW))
    assert [each.key.user for each in turns] == ["e", "d", "c", "b", "a"]

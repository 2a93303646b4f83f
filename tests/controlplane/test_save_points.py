"""A save point: what a session goes back to when it ends, and nothing before."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused
from jupyterhub_gpu_reclaim.common.models import (
    Failure,
    KernelSample,
    Placement,
    SessionKey,
    SessionPolicy,
    Usage,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.api import users
from jupyterhub_gpu_reclaim.controlplane.decide.saving import LULL, is_time
from jupyterhub_gpu_reclaim.controlplane.flows import taking
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent, Keeping
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from tests.controlplane.conftest import KEY


def row(controller):
    return controller._sessions.row(KEY)


def kept(controller) -> dict[str, Keeping]:
    rows = controller._sessions.journal.checkpoints(KEY)
    return {each.id: each.keeping for each in rows}


async def saved(world, controller, name: str = "") -> str:
    """The id of a new save point of the session."""
    before = set(world.node.saved)
    await controller.users.save(KEY, "ada", name)
    await world.until(lambda: row(controller).intent is Intent.NONE)
    (new,) = set(world.node.saved) - before
    return new


async def running(world, contents: str = "as saved"):
    controller = await world.controller()
    incarnation = await world.running(contents)
    await world.until(lambda: world.phase(controller) == "running")
    return controller, incarnation


def lost(world, incarnation: str) -> None:
    """Its node is gone, and the Hub has noticed that."""
    world.node.end(incarnation)
    world.hub.states[KEY] = "stopped"


async def test_session_that_is_lost_comes_back_as_it_was_saved_once_its_user_says_so(
    world,
):
    controller, incarnation = await running(world)
    checkpoint = await saved(world, controller)
    assert world.phase(controller) == "running"
    assert row(controller).checkpoint == checkpoint
    world.node.places[incarnation].contents = "later"
    lost(world, incarnation)
    await world.until(lambda: world.phase(controller) == "suspended")
    for _ in range(2):
        plan = await controller.plan_start(Placement(key=KEY, incarnation="i2"))
        assert (plan.action, plan.failure.code) == ("refuse", "ended_since_saved")
    await controller.users.resume(KEY, "ada")
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    (place,) = world.node.places.values()
    assert place.contents == "as saved"


def ended_by(monkeypatch, code: str, at: float = 0.0) -> None:
    """A cluster's word about the pod, which an agent alone does not have."""
    told = Failure(code=code, message="Its pod on n1 was ended: node lost.", at=at)
    monkeypatch.setattr(AgentClient, "ending", lambda *_: told)


async def test_what_ended_it_is_told_with_the_question(world, monkeypatch):
    controller, incarnation = await running(world)
    await saved(world, controller)
    ended_by(monkeypatch, "session_disrupted")
    lost(world, incarnation)
    await world.until(lambda: world.phase(controller) == "suspended")
    message = row(controller).failure.message
    assert "(its pod on n1 was ended: node lost); its last save point" in message


#: 2026-11-29 13:45, 13:50 and 13:55 UTC
SAVED, SEEN, ENDED = 1795959900.0, 1795960200.0, 1795960500.0
ON = "The session ended on 2026-11-29 13:55 UTC"
BETWEEN = "The session ended between 2026-11-29 13:{} UTC and "


@pytest.mark.parametrize(
    ("seen", "at", "words"),
    [
        (SEEN, ENDED, ON),  # the cluster tells when
        (SEEN, 0.0, BETWEEN.format(50)),  # a node was silent, and is gone by now
        (None, 0.0, BETWEEN.format(45)),  # the service did not run then
    ],
)
async def test_question_tells_when_it_died_and_not_when_that_was_noticed(
    world, monkeypatch, seen, at, words
):
    controller, incarnation = await running(world)
    checkpoint = await saved(world, controller)
    sessions = controller._sessions
    info = sessions.journal.checkpoint(checkpoint).info
    info = msgspec.structs.replace(info, created=SAVED)
    runtime = sessions.runtime(KEY)
    runtime.seen = seen
    runtime.sampled = incarnation if seen else ""
    ended = Failure(code="session_disrupted", message="Its pod was ended.", at=at)
    after = taking.lost(sessions, row(controller), info, ended, world.settings)
    assert after.checkpoint == checkpoint
    assert after.failure.message.startswith(words), after.failure.message
    assert "last save point is from 2026-11-29 13:45 UTC" in after.failure.message


@pytest.mark.parametrize(
    ("code", "comes"), [("session_disrupted", True), ("session_out_of_memory", False)]
)
async def test_what_the_cluster_has_ended_comes_back_by_itself_where_that_is_set(
    world, monkeypatch, code, comes
):
    world.change(return_disrupted=True)
    controller, incarnation = await running(world)
    await saved(world, controller)
    world.node.places[incarnation].contents = "later"
    ended_by(monkeypatch, code)
    lost(world, incarnation)
    if not comes:
        await world.until(lambda: world.phase(controller) == "suspended")
        await asyncio.sleep(0.5)
        assert world.phase(controller) == "suspended"
        return
    await world.until(lambda: world.node.living(KEY))
    await world.until(lambda: world.phase(controller) == "running")
    (place,) = world.node.living(KEY)
    assert place.contents == "as saved"
    assert world.hub.plans[-1] == "start restore"


async def test_user_may_start_fresh_instead(world):
    controller, incarnation = await running(world)
    checkpoint = await saved(world, controller)
    lost(world, incarnation)
    await world.until(lambda: world.phase(controller) == "suspended")
    await controller.users.start_fresh(KEY, "ada")
    assert await world.hub.start(KEY) == "cold"
    assert kept(controller) == {checkpoint: Keeping.ASIDE}


async def test_last_few_are_kept_where_their_user_finds_them(world):
    world.change(save_points=3)
    controller, _ = await running(world)
    ids = [await saved(world, controller) for _ in range(4)]
    assert [kept(controller)[each] for each in ids[1:]] == [
        Keeping.ASIDE,
        Keeping.ASIDE,
        Keeping.SUPERSEDED,
    ]
    journal = controller._sessions.journal
    oldest, second = journal.checkpoint(ids[0]), journal.checkpoint(ids[1])
    assert oldest.expires < time.time() + world.settings.grace + 5
    assert second.expires > time.time() + world.settings.set_aside - 60
    states = controller.users.session(KEY).kept
    assert [each.id for each in states if each.save_point][:3] == ids[:0:-1]


async def test_named_one_is_kept_beside_later_ones_and_can_come_back(world):
    controller, incarnation = await running(world)
    named = await saved(world, controller, " before the upgrade ")
    await saved(world, controller)
    plain = await saved(world, controller)
    named_row = controller._sessions.journal.checkpoint(named)
    assert (named_row.keeping, named_row.name) == (Keeping.ASIDE, "before the upgrade")
    (state,) = [s for s in controller.users.session(KEY).kept if s.id == named]
    assert (state.name, state.save_point) == ("before the upgrade", True)
    await world.until(lambda: world.node.saved[named][0].aside is not None)
    world.node.places[incarnation].contents = "later"
    await controller.users.bring_back(KEY, named, "ada", save_running=True)
    await world.until(lambda: row(controller).checkpoint == named)
    await world.until(lambda: world.phase(controller) == "running")
    (place,) = world.node.living(KEY)
    assert place.contents == "as saved"
    # What ran until then can be brought back likewise.
    present = [s for s in controller.users.session(KEY).kept if s.keeping == "aside"]
    assert {s.id for s in present} - {named, plain}


async def test_named_one_that_was_brought_back_is_there_after_its_grace(world):
    world.change(grace=0.2)
    controller, _ = await running(world)
    named = await saved(world, controller, "good")
    await saved(world, controller)
    await controller.users.bring_back(KEY, named, "ada", save_running=True)
    await world.until(lambda: row(controller).checkpoint == named)
    await world.until(lambda: world.hub.states[KEY] == "running")
    await world.until(lambda: kept(controller).get(named) is Keeping.ASIDE)
    there = controller._sessions.journal.checkpoint(named)
    assert there.expires > time.time() + world.settings.set_aside - 60
    assert (there.name, row(controller).checkpoint) == ("good", "")
    assert named in world.node.saved


async def test_nobody_floods_the_store_with_names(world, monkeypatch):
    monkeypatch.setattr(users, "MOST_NAMED", 2)
    controller, _ = await running(world)
    first = await saved(world, controller, "1")
    await saved(world, controller, "2")
    with pytest.raises(Refused):
        await controller.users.save(KEY, "ada", "3")
    await saved(world, controller)
    await controller.users.discard(KEY, "ada", first)
    await saved(world, controller, "3")


async def test_name_outlives_the_journal(world):
    """It is in the manifest; and what has one is kept, whoever counts."""
    world.change(save_points=1)
    first, _ = await running(world)
    named = await saved(world, first, "before Monday")
    await saved(world, first)
    assert world.node.saved[named][0].name == "before Monday"
    second = await world.journal_lost(first)
    await world.until(lambda: len(kept(second)) == 2)
    await saved(world, second)
    states = {each.id: each for each in second.users.session(KEY).kept}
    assert states[named].name == "before Monday"
    assert kept(second)[named] is Keeping.ASIDE
    assert states[named].expires > time.time() + world.settings.set_aside - 60


async def test_name_outlives_the_service(world):
    controller, _ = await running(world)
    world.node.hold_at = "dump"
    await controller.users.save(KEY, "ada", "mine")
    await world.kill(controller)
    world.node.hold_at = ""
    controller = await world.controller()
    await world.until(lambda: row(controller).intent is Intent.NONE)
    names = {each.name for each in controller._sessions.journal.checkpoints(KEY)}
    assert "mine" in names
    assert row(controller).save_name == ""


async def test_name_that_is_given_while_another_one_is_made_is_not_lost(world):
    controller, incarnation = await running(world)
    world.node.hold_at = "dump"
    await controller.users.save(KEY, "ada", "first")
    await world.until(lambda: world.node.places[incarnation].running)
    await controller.users.save(KEY, "ada", "second")
    world.node.hold_at = ""
    await world.until(lambda: row(controller).intent is Intent.NONE)
    names = {each.name for each in controller._sessions.journal.checkpoints(KEY)}
    assert names == {"first", "second"}


async def test_name_of_one_that_was_called_off_is_not_given_to_a_later_one(world):
    controller, incarnation = await running(world)
    world.node.hold_at = "dump"
    await controller.users.save(KEY, "ada", "mine")
    await world.until(lambda: world.node.places[incarnation].running)
    await controller.users.suspend(KEY, "ada")
    world.node.hold_at = ""
    await world.until(lambda: world.phase(controller) == "suspended")
    assert row(controller).save_name == ""


@pytest.mark.parametrize("name", ["x" * 81, "two\nlines", "\x1b[31m"])
async def test_what_is_no_name_is_refused(world, name):
    controller, _ = await running(world)
    with pytest.raises(BadRequest):
        await controller.users.save(KEY, "ada", name)
    assert row(controller).intent is Intent.NONE


async def test_suspend_makes_it_superfluous_and_a_stop_puts_it_aside(world):
    controller, _ = await running(world)
    checkpoint = await saved(world, controller)
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    rows = {r.id: r for r in controller._sessions.journal.checkpoints(KEY)}
    assert rows[checkpoint].keeping is Keeping.SUPERSEDED
    assert rows[checkpoint].expires is not None
    await controller.users.resume(KEY, "ada")
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    again = await saved(world, controller)
    await world.hub.stop(KEY)
    await world.until(lambda: world.phase(controller) == "stopped")
    assert kept(controller)[again] is Keeping.ASIDE
    assert await world.hub.start(KEY) == "cold"


async def test_nobody_saves_what_does_not_run(world):
    controller, _ = await running(world)
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    with pytest.raises(Refused) as refused:
        await controller.users.save(KEY, "ada")
    assert refused.value.reason is Reason.WRONG_PHASE


def used(world, at: float) -> None:
    """From now on its server says that it was used then."""
    world.node.kernels = [
        KernelSample(id="k", name="a.ipynb", execution_state="idle", last_activity=at)
    ]


async def test_rule_saves_what_was_used_since_and_nothing_else(world):
    world.change(save_every=0.2)
    used(world, time.time() - 60.0)
    controller, _ = await running(world)
    used(world, time.time())
    await world.until(lambda: len(world.node.saved) >= 1)
    await world.until(lambda: row(controller).checkpoint in world.node.saved)
    first = row(controller).checkpoint
    assert first in world.node.saved
    calls = len(world.node.saved)
    await asyncio.sleep(0.6)
    assert len(world.node.saved) == calls  # nobody has used it since
    used(world, time.time() + 60.0)
    await world.until(lambda: row(controller).checkpoint != first)
    assert world.phase(controller) == "running"


@pytest.mark.parametrize(
    ("age", "active", "due"),
    [
        (899.0, 600.0, False),
        (900.0, 600.0, True),
        (900.0, LULL, True),
        (900.0, LULL - 1.0, False),  # somebody types
        (900.0, -5.0, False),  # by a clock that is fast
        (900.0, None, False),  # nobody knows
        (1199.0, 0.0, False),
        (1200.0, 0.0, True),  # and goes on typing
        (1200.0, None, True),
    ],
)
@pytest.mark.parametrize("busy", [None, "kernel"])
def test_rule_waits_for_a_lull_for_a_third_of_its_time(age, active, due, busy):
    now = 1e9
    usage = Usage(
        at=now,
        watched=600.0,
        sample_age=0.0,
        last_active=None if active is None else now - active,
        busy_kernel=busy,
    )
    assert is_time(now, now - age, 900.0, usage) == due


async def test_rule_for_a_group_stands_above_the_time_for_all(world):
    controller, _ = await running(world)
    await asyncio.sleep(0.3)
    assert not world.node.saved
    terms = SessionPolicy(save_every=0.2)
    controller._sessions.policies = lambda key: terms
    used(world, time.time() + 60.0)
    await world.until(lambda: world.node.saved)


async def test_session_with_a_card_is_saved_once_in_each_nap_and_not_before(world):
    world.change(save_every=0.1)
    world.node.card = 80 << 30
    controller, incarnation = await running(world)
    used(world, time.time() + 60.0)
    world.node.places[incarnation].gpu_memory = 8 << 30
    await asyncio.sleep(0.5)
    assert not world.node.saved
    await controller.users.nap(KEY, "root")
    await world.until(lambda: world.phase(controller) == "napping")
    await world.until(lambda: world.node.saved)
    await asyncio.sleep(0.5)
    assert len(world.node.saved) == 1
    assert world.phase(controller) == "napping"


async def test_risk_is_counted_from_the_last_save_point_of_what_was_used_since(world):
    used(world, time.time() - 3600.0)
    controller, _ = await running(world)
    await world.until(lambda: controller._sessions.runtime(KEY).usage is not None)
    (risk,) = controller.metrics_snapshot().risks
    assert risk.seconds == 0.0  # nothing was done in it
    used(world, time.time() + 60.0)
    await world.until(lambda: controller.metrics_snapshot().risks[0].seconds > 0.3)
    begun = time.monotonic()
    await saved(world, controller)
    (risk,) = controller.metrics_snapshot().risks
    assert risk.seconds < 0.15 + time.monotonic() - begun
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    assert controller.metrics_snapshot().risks == []


async def test_save_by_rule_that_finds_others_under_way_is_tried_soon(world):
    world.change(save_every=60.0, captures=1)
    world.node.card = 80 << 30
    controller, incarnation = await running(world)
    world.node.places[incarnation].gpu_memory = 8 << 30
    other = SessionKey("bob", "lab")
    second = await world.running("its", other)
    world.node.places[second].gpu_memory = 8 << 30
    world.node.hold_at = "dump"
    await world.until(lambda: world.phase(controller, other) == "running")
    for key in (KEY, other):
        await controller.users.nap(key, "root")
    places = list(world.node.places.values())
    await world.until(
        lambda: any(p.running and p.running.kind == "save" for p in places)
    )
    await asyncio.sleep(0.2)
    assert sum(each.running is not None for each in places) == 1
    world.node.hold_at = ""
    await world.until(lambda: len(world.node.saved) == 2)


@pytest.mark.parametrize("backoff", [0.2, 60.0])
async def test_save_by_rule_that_was_refused_is_tried_as_soon_as_a_suspend(
    world, backoff
):
    world.change(save_every=3600.0, backoff=backoff)
    world.node.card = 80 << 30
    controller, incarnation = await running(world)
    place = world.node.places[incarnation]
    place.gpu_memory = 8 << 30
    place.stuck = "It has what cannot."
    await controller.users.nap(KEY, "root")

    def refused() -> bool:
        told = controller.users.audit(KEY)
        return any(line.what == "save point failed" for line in told)

    await world.until(refused)
    place.stuck = ""
    if backoff < 1.0:
        await world.until(lambda: world.node.saved)
        return
    await asyncio.sleep(0.5)
    assert not world.node.saved


async def test_what_is_ordered_before_the_agent_has_begun_calls_it_off(world):
    controller, incarnation = await running(world)
    place, begin = world.node.places[incarnation], world.node.save
    asked, goes_on, saves = asyncio.Event(), asyncio.Event(), []

    async def late(*order, **more):
        asked.set()
        await goes_on.wait()
        events = await begin(*order, **more)
        saves.append(place.operation)
        return events

    world.node.save = late
    world.node.hold_at = "dump"
    await controller.users.save(KEY, "ada")
    await asked.wait()
    await controller.users.suspend(KEY, "ada")
    await asyncio.sleep(0.1)  # a cancel has nothing to cancel yet
    goes_on.set()
    await world.until(lambda: saves)
    (save,) = saves
    await world.until(lambda: save.done)
    world.node.hold_at = ""
    await world.until(lambda: world.phase(controller) == "suspended")
    assert row(controller).checkpoint != save.checkpoint


async def test_save_points_that_are_found_late_are_kept_by_their_age(world):
    world.change(save_points=2)
    controller, _ = await running(world)
    second = await saved(world, controller)
    await world.kill(controller)
    info, image = world.node.saved[second]
    for name, number in (("first", 0), ("third", info.generation + 1)):
        found = msgspec.structs.replace(info, id=name, generation=number)
        world.node.saved[name] = (found, image)
    controller = await world.controller()
    await world.until(lambda: row(controller).checkpoint == "third")
    keeping = kept(controller)
    assert keeping[second] is Keeping.ASIDE
    assert keeping["first"] is Keeping.SUPERSEDED


NEWER = Failure(code="files_newer", message="data.sqlite has changed.")


async def test_newer_files_are_a_question_of_their_own_and_its_answer_is_for_one_return(
    world,
):
    controller, incarnation = await running(world)
    checkpoint = await saved(world, controller)
    lost(world, incarnation)
    await world.until(lambda: world.phase(controller) == "suspended")
    with pytest.raises(Refused):  # nobody has been asked that yet
        await controller.users.put_files_back(KEY, "ada")
    await controller.users.resume(KEY, "ada")
    world.node.restore_failure = NEWER
    assert await world.hub.start(KEY) == "files_newer"
    await world.until(lambda: world.phase(controller) == "suspended")
    assert row(controller).failure.code == "files_newer"
    assert row(controller).checkpoint == checkpoint

    world.node.restore_failure = Failure(code="file_in_use", message="It is open.")
    await controller.users.put_files_back(KEY, "ada")
    assert await world.hub.start(KEY) == "file_in_use"
    await world.until(lambda: world.phase(controller) == "suspended")
    world.node.restore_failure = NEWER  # another answer is needed for the next one
    assert await world.hub.start(KEY) == "files_newer"
    await world.until(lambda: world.phase(controller) == "suspended")
    world.node.restore_failure = None
    await controller.users.put_files_back(KEY, "ada")
    assert await world.hub.start(KEY) == "restore"
    await world.until(lambda: world.phase(controller) == "running")
    assert world.node.files_back == [False, True, False, True]
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    assert await world.hub.start(KEY) == "restore"
    assert world.node.files_back[-1] is False


async def test_what_comes_back_by_rule_asks_where_files_are_newer(world, monkeypatch):
    world.change(return_disrupted=True)
    controller, incarnation = await running(world)
    await saved(world, controller)
    world.node.restore_failure = NEWER
    ended_by(monkeypatch, "session_disrupted")
    lost(world, incarnation)
    await world.until(lambda: world.node.files_back)
    await world.until(lambda: world.phase(controller) == "suspended")
    await asyncio.sleep(0.5)
    assert world.node.files_back == [False]
    assert row(controller).failure.code == "files_newer"
    assert row(controller).intent is Intent.NONE


async def test_save_point_that_nobody_heard_of_comes_back_by_its_users_word_alone(
    world,
):
    """The session ended while no service was there: what came after it is lost."""
    controller, incarnation = await running(world)
    world.node.breaks_streams = True
    await controller.users.save(KEY, "ada")
    await world.until(lambda: world.node.saved)
    await world.kill(controller)
    world.node.breaks_streams = False
    lost(world, incarnation)
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "suspended")
    assert row(controller).checkpoint in world.node.saved
    assert row(controller).failure.code == "ended_since_saved"
    plan = await controller.plan_start(Placement(key=KEY, incarnation="i9"))
    assert (plan.action, plan.failure.code) == ("refuse", "ended_since_saved")

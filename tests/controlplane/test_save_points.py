"""A save point: what a session goes back to when it ends, and nothing before."""

import asyncio

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.agent_orders import Restore
from jupyterhub_gpu_reclaim.common.errors import BadRequest, NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import (
    Failure,
    Sample,
    SessionKey,
    SessionPolicy,
    Usage,
)
from jupyterhub_gpu_reclaim.controlplane import people, taking
from jupyterhub_gpu_reclaim.controlplane.save_points import LULL, is_time
from jupyterhub_gpu_reclaim.controlplane.session import Intent, Keeping
from simulation.doubles.machine import GIB
from simulation.loop import MONDAY
from simulation.programs import AgentOverWire
from tests.support.simulated import KEY


def row(controller):
    return controller._sessions.row(KEY)


def kept(controller) -> dict[str, Keeping]:
    rows = controller._sessions.journal.checkpoints(KEY)
    return {each.id: each.keeping for each in rows}


async def test_session_that_is_lost_comes_back_as_it_was_saved_once_its_user_says_so(
    world,
):
    controller, incarnation = await world.started("as saved")
    checkpoint = await world.saved(controller)
    assert world.phase(controller) == "running"
    assert row(controller).checkpoint == checkpoint
    world.node.places[incarnation].tree.contents = "later"
    world.lost()
    await world.reaches(controller, "suspended")
    for _ in range(2):
        assert await world.hub.start() == "ended_since_saved"
    await controller.users.resume(KEY, "ada")
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    assert world.node.works() == ["as saved"]


def ended_by(monkeypatch, code: str, at: float = 0.0) -> None:
    """A cluster's word about the pod, which an agent alone does not have."""
    told = Failure(code=code, message="Its pod on n1 was ended: node lost.", at=at)
    monkeypatch.setattr(AgentOverWire, "ending", lambda *_: told)


async def test_what_ended_it_is_told_with_the_question(world, monkeypatch):
    controller, _ = await world.started()
    await world.saved(controller)
    ended_by(monkeypatch, "session_disrupted")
    world.lost()
    await world.reaches(controller, "suspended")
    message = row(controller).failure.message
    assert "(its pod on n1 was ended: node lost); its last save point" in message


#: 23:45, 23:50 and 23:55 UTC
SAVED, SEEN, ENDED = MONDAY - 900.0, MONDAY - 600.0, MONDAY - 300.0
ON = "The session ended on 2024-12-29 23:55 UTC"
BETWEEN = "The session ended between 2024-12-29 23:{} UTC and "


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
    controller, incarnation = await world.started()
    checkpoint = await world.saved(controller)
    sessions = controller._sessions
    info = sessions.journal.checkpoint(checkpoint).info
    info = msgspec.structs.replace(info, created=SAVED)
    mine = incarnation if seen else ""
    sessions.runtime(KEY).sample = Sample(incarnation=mine, key=KEY, at=seen or 0.0)
    ended = Failure(code="session_disrupted", message="Its pod was ended.", at=at)
    after = taking.lost(sessions, row(controller), info, ended)
    assert after.checkpoint == checkpoint
    assert after.failure.message.startswith(words), after.failure.message
    assert "last save point is from 2024-12-29 23:45 UTC" in after.failure.message


@pytest.mark.parametrize(
    ("code", "comes"), [("session_disrupted", True), ("session_out_of_memory", False)]
)
async def test_what_the_cluster_has_ended_comes_back_by_itself_where_that_is_set(
    world, monkeypatch, code, comes
):
    world.change(return_disrupted=True)
    controller, incarnation = await world.started("as saved")
    await world.saved(controller)
    world.node.places[incarnation].tree.contents = "later"
    ended_by(monkeypatch, code)
    world.lost()
    if not comes:
        await world.reaches(controller, "suspended")
        await asyncio.sleep(5)
        assert world.phase(controller) == "suspended"
        return
    await world.until(lambda: world.node.living(KEY))
    await world.reaches(controller, "running")
    assert world.node.works() == ["as saved"]
    assert world.hub.plans[-1] == "start restore"


async def test_last_few_are_kept_where_their_user_finds_them(world):
    world.change(save_points=3)
    controller, _ = await world.started()
    ids = [await world.saved(controller) for _ in range(4)]
    assert [kept(controller)[each] for each in ids[1:]] == [
        Keeping.ASIDE,
        Keeping.ASIDE,
        Keeping.SUPERSEDED,
    ]
    journal = controller._sessions.journal
    oldest, second = journal.checkpoint(ids[0]), journal.checkpoint(ids[1])
    assert oldest.expires < world.now() + world.settings.grace + 5
    assert second.expires > world.now() + world.settings.set_aside - 60
    states = controller.users.session(KEY).kept
    assert [each.id for each in states if each.save_point][:3] == ids[:0:-1]


async def test_named_one_is_kept_beside_later_ones_and_can_come_back(world):
    controller, incarnation = await world.started("as saved")
    named = await world.saved(controller, " before the upgrade ")
    await world.saved(controller)
    plain = await world.saved(controller)
    named_row = controller._sessions.journal.checkpoint(named)
    assert (named_row.keeping, named_row.name) == (Keeping.ASIDE, "before the upgrade")
    (state,) = [s for s in controller.users.session(KEY).kept if s.id == named]
    assert (state.name, state.save_point) == ("before the upgrade", True)
    world.node.places[incarnation].tree.contents = "later"
    await controller.users.bring_back(KEY, named, "ada", save_running=True)
    await world.until(lambda: row(controller).checkpoint == named)
    await world.reaches(controller, "running")
    assert world.node.works() == ["as saved"]
    # What ran until then can be brought back likewise.
    present = [s for s in controller.users.session(KEY).kept if s.keeping == "aside"]
    assert {s.id for s in present} - {named, plain}


async def test_named_one_that_was_brought_back_is_there_after_its_grace(world):
    world.change(grace=2.0)
    controller, _ = await world.started()
    named = await world.saved(controller, "good")
    await world.saved(controller)
    await controller.users.bring_back(KEY, named, "ada", save_running=True)
    await world.until(lambda: row(controller).checkpoint == named)
    await world.until(lambda: world.hub.states[KEY] == "running")
    await world.until(lambda: kept(controller).get(named) is Keeping.ASIDE)
    there = controller._sessions.journal.checkpoint(named)
    assert there.expires > world.now() + world.settings.set_aside - 60
    assert (there.name, row(controller).checkpoint) == ("good", "")
    assert named in world.node.saved


async def test_nobody_floods_the_store_with_names(world, monkeypatch):
    monkeypatch.setattr(people, "MOST_NAMED", 2)
    controller, _ = await world.started()
    first = await world.saved(controller, "1")
    await world.saved(controller, "2")
    with pytest.raises(Refused):
        await controller.users.save(KEY, "ada", "3")
    await world.saved(controller)
    await controller.users.delete(KEY, "ada", first)
    await world.saved(controller, "3")


async def test_name_that_was_given_later_outlives_the_journal_and_chooses_nothing(
    world,
):
    first, _ = await world.started("as saved")
    saved = await world.saved(first)
    unsaid = world.node.listed()[0].word
    for _ in range(2):  # as often as one likes
        await first.users.rename(KEY, saved, " before Monday ", "ada")
        assert world.node.listed()[0].name == "before Monday"
        assert world.node.listed()[0].word == unsaid == (0, 0)
        await first.users.rename(KEY, saved, "", "ada")
        assert not world.node.listed()[0].name
    await first.users.rename(KEY, saved, "good", "ada")
    later = await world.saved(first)
    second = await world.journal_lost(first)
    await world.reaches(second, "running")
    states = {each.id: each.name for each in second.users.session(KEY).kept}
    assert states == {saved: "good", later: ""}
    world.lost()
    await world.reaches(second, "suspended")
    assert await world.hub.start() == "ended_since_saved"  # nobody has chosen it


async def test_name_does_not_take_back_what_was_chosen_since(world):
    """``is_left`` goes by the words' numbers, of which a name has none."""
    controller, _ = await world.started()
    older = await world.saved(controller, "older")
    newer = await world.saved(controller, "newer")
    await controller.users.bring_back(KEY, older, "ada", save_running=True)
    await world.until(lambda: row(controller).checkpoint == older)
    await world.reaches(controller, "running")
    words = {each.id: each.word for each in world.node.listed()}
    await controller.users.rename(KEY, newer, "newest", "ada")
    await world.until(lambda: "newest" in {each.name for each in world.node.listed()})
    assert words[newer] == {e.id: e.word for e in world.node.listed()}[newer]


async def test_what_has_no_name_is_refused_one(world, monkeypatch):
    monkeypatch.setattr(people, "MOST_NAMED", 1)
    controller, _ = await world.started()
    named = await world.saved(controller, "a")
    plain = await world.saved(controller)
    await controller.users.rename(KEY, named, "b", "ada")
    with pytest.raises(Refused):
        await controller.users.rename(KEY, plain, "c", "ada")
    with pytest.raises(BadRequest):
        await controller.users.rename(KEY, named, "two\nlines", "ada")
    with pytest.raises(NotFound):
        await controller.users.rename(KEY, "nothing", "c", "ada")
    suspended = await world.suspend(controller)
    with pytest.raises(Refused, match="save points"):
        await controller.users.rename(KEY, suspended, "", "ada")


async def test_name_outlives_the_service(world):
    controller, _ = await world.started()
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
    controller, _ = await world.started()
    world.node.hold_at = "dump"
    await controller.users.save(KEY, "ada", "first")
    await world.until(lambda: world.node.begun)
    await controller.users.save(KEY, "ada", "second")
    world.node.hold_at = ""
    await world.until(lambda: row(controller).intent is Intent.NONE)
    names = {each.name for each in controller._sessions.journal.checkpoints(KEY)}
    assert names == {"first", "second"}


async def test_name_of_one_that_was_called_off_is_not_given_to_a_later_one(world):
    controller, _ = await world.started()
    world.node.hold_at = "dump"
    await controller.users.save(KEY, "ada", "mine")
    await world.until(lambda: world.node.begun)
    await controller.users.suspend(KEY, "ada")
    world.node.hold_at = ""
    await world.reaches(controller, "suspended")
    assert row(controller).save_name == ""


@pytest.mark.parametrize(
    "name",
    [
        *("x" * 81, "two\nlines", "\x1b[31m"),
        *("\u3164", "\u2800 \u2800", "\u115f\u1160\uffa0", "\u034f\ufe0f"),
    ],
)
async def test_what_is_no_name_is_refused(world, name):
    controller, _ = await world.started()
    with pytest.raises(BadRequest):
        await controller.users.save(KEY, "ada", name)
    assert row(controller).intent is Intent.NONE


async def test_suspend_makes_it_superfluous_and_a_stop_puts_it_aside(world):
    controller, _ = await world.started()
    checkpoint = await world.saved(controller)
    await world.suspend(controller)
    rows = {r.id: r for r in controller._sessions.journal.checkpoints(KEY)}
    assert rows[checkpoint].keeping is Keeping.SUPERSEDED
    assert rows[checkpoint].expires is not None
    await controller.users.resume(KEY, "ada")
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    again = await world.saved(controller)
    await world.hub.stop(KEY)
    await world.reaches(controller, "stopped")
    assert kept(controller)[again] is Keeping.ASIDE
    assert await world.hub.start(KEY) == "cold"


async def test_rule_saves_what_was_used_since_and_nothing_else(world):
    world.change(save_every=2.0)
    world.node.used(world.now() - 60.0)
    controller, _ = await world.started()
    world.node.used(world.now())
    await world.until(lambda: len(world.node.saved) >= 1)
    await world.until(lambda: row(controller).checkpoint in world.node.saved)
    first = row(controller).checkpoint
    assert first in world.node.saved
    calls = len(world.node.saved)
    await asyncio.sleep(6)
    assert len(world.node.saved) == calls  # nobody has used it since
    world.node.used(world.now() + 60.0)
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
    controller, _ = await world.started()
    await asyncio.sleep(3)
    assert not world.node.saved
    terms = SessionPolicy(save_every=2.0)
    controller._sessions.policies = lambda key: terms
    world.node.used(world.now() + 60.0)
    await world.until(lambda: world.node.saved)


async def test_session_with_a_card_is_saved_once_in_each_nap_and_not_before(world):
    world.node.used(world.now() + 60.0)
    controller, _ = await world.started(gpu=GIB, save_every=1.0)
    await asyncio.sleep(5)
    assert not world.node.saved
    await controller.users.nap(KEY, "root")
    await world.reaches(controller, "napping")
    await world.until(lambda: world.node.saved)
    await asyncio.sleep(5)
    assert len(world.node.saved) == 1
    assert world.phase(controller) == "napping"


async def test_save_by_rule_that_finds_others_under_way_is_tried_soon(world):
    controller, _ = await world.started(gpu=GIB, save_every=60.0, captures=1)
    other = SessionKey("bob", "lab")
    await world.running("its", other, gpu=GIB)
    world.node.hold_at = "dump"
    await world.reaches(controller, "running", other)
    for key in (KEY, other):
        await controller.users.nap(key, "root")
    await world.until(lambda: world.node.begun.count("dump"))
    await asyncio.sleep(5)
    assert world.node.begun.count("dump") == 1
    world.node.hold_at = ""
    await world.until(lambda: len(world.node.saved) == 2)


@pytest.mark.parametrize("backoff", [2.0, 60.0])
async def test_save_by_rule_that_was_refused_is_tried_as_soon_as_a_suspend(
    world, backoff
):
    controller, _ = await world.started(gpu=GIB, save_every=3600.0, backoff=backoff)
    world.node.failures["dump"] = Failure(code="capture_failed", message="It cannot.")
    await controller.users.nap(KEY, "root")
    await world.until(
        lambda: "save point failed" in [a.what for a in controller.users.audit(KEY)]
    )
    world.node.failures.clear()
    if backoff < 10.0:
        await world.until(lambda: world.node.saved)
        return
    await asyncio.sleep(5)
    assert not world.node.saved


async def test_what_is_ordered_before_the_agent_has_begun_calls_it_off(world):
    controller, _ = await world.started()
    world.node.switches.slow["save"] = 5.0
    world.node.hold_at = "dump"
    await controller.users.save(KEY, "ada")
    await world.until(lambda: world.node.called("save"))
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.node.begun == ["dump", "dump"])
    world.node.hold_at = ""
    await world.reaches(controller, "suspended")
    (saved,) = world.node.saved.values()
    assert not saved.info.goes_on


async def test_save_points_that_are_found_late_are_kept_by_their_age(world):
    controller, _ = await world.started(save_points=2)
    second = await world.saved(controller)
    await world.kill(controller)
    number = world.node.saved[second].info.generation
    world.node.copy(second, id="first", generation=0)
    world.node.copy(second, id="third", generation=number + 1)
    controller = await world.controller()
    await world.until(lambda: row(controller).checkpoint == "third")
    keeping = kept(controller)
    assert keeping[second] is Keeping.ASIDE
    assert keeping["first"] is Keeping.SUPERSEDED


NEWER = Failure(code="files_newer", message="data.sqlite has changed.")


@pytest.fixture
def files_back(monkeypatch):
    """Whether each return was to put files back."""
    asked, follow = [], AgentOverWire.follow

    def noted(self, incarnation, order):
        if isinstance(order, Restore):
            asked.append(order.put_files_back)
        return follow(self, incarnation, order)

    monkeypatch.setattr(AgentOverWire, "follow", noted)
    return asked


async def test_newer_files_are_a_question_of_their_own_and_its_answer_is_for_one_return(
    world, files_back
):
    controller, _ = await world.started()
    checkpoint = await world.saved(controller)
    world.lost()
    await world.reaches(controller, "suspended")
    with pytest.raises(Refused):  # nobody has been asked that yet
        await controller.users.put_files_back(KEY, "ada")
    await controller.users.resume(KEY, "ada")
    world.node.failures["criu"] = NEWER
    assert await world.hub.start(KEY) == "files_newer"
    await world.reaches(controller, "suspended")
    assert row(controller).failure.code == "files_newer"
    assert row(controller).checkpoint == checkpoint

    world.node.failures["criu"] = Failure(code="file_in_use", message="It is open.")
    await controller.users.put_files_back(KEY, "ada")
    assert await world.hub.start(KEY) == "file_in_use"
    await world.reaches(controller, "suspended")
    world.node.failures["criu"] = NEWER  # another answer is needed for the next one
    assert await world.hub.start(KEY) == "files_newer"
    await world.reaches(controller, "suspended")
    world.node.failures.clear()
    await controller.users.put_files_back(KEY, "ada")
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(controller, "running")
    assert files_back == [False, True, False, True]
    await world.suspend(controller)
    assert await world.hub.start(KEY) == "restore"
    assert files_back[-1] is False


async def test_what_comes_back_by_rule_asks_where_files_are_newer(
    world, monkeypatch, files_back
):
    world.change(return_disrupted=True)
    controller, _ = await world.started()
    await world.saved(controller)
    world.node.failures["criu"] = NEWER
    ended_by(monkeypatch, "session_disrupted")
    world.lost()
    await world.until(lambda: files_back)
    await world.reaches(controller, "suspended")
    await asyncio.sleep(5)
    assert files_back == [False]
    assert row(controller).failure.code == "files_newer"
    assert row(controller).intent is Intent.NONE

"""What is said of a checkpoint is in the store, and outlives the journal."""

import asyncio

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import Aside, GoneOn, Mark, Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import marks
from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, Keeping
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.store.format.layout import MarkNumber
from simulation.doubles.store import Saved
from tests.support.simulated import KEY

UNSAID = Saved._field_defaults["mark"]


def keeper_of(sessions, agent):
    sessions.agent = agent
    return marks.Marks(sessions)


def word(world, checkpoint):
    return world.node.said(checkpoint).aside


def number_of(world, checkpoint):
    return world.node.saved[checkpoint].mark[0]


def row(controller, checkpoint):
    return controller._sessions.journal.checkpoint(checkpoint)


async def put_aside(world, controller):
    """Suspend it, and let its user start fresh; what was put aside."""
    saved = await world.suspend(controller)
    await controller.users.start_fresh(KEY, "ada")
    return saved


async def started_fresh(world, controller):
    """The same, and a new session, which was never saved, runs."""
    saved = await put_aside(world, controller)
    assert await world.hub.start(KEY) == "cold"
    await world.until(lambda: word(world, saved))
    return saved


async def test_what_was_put_aside_is_marked_until_it_comes_back(world):
    first, _ = await world.started("tensors")
    saved = await started_fresh(world, first)
    assert word(world, saved) == Aside(until=row(first, saved).expires)
    await first.users.bring_back(KEY, saved, "ada", save_running=True)
    await world.until(lambda: world.hub.states[KEY] == "stopped")
    await world.until(lambda: word(world, saved) is None)


async def test_journal_lost_after_a_fresh_start_the_next_one_is_cold_and_offers_it(
    world,
):
    first, _ = await world.started("tensors")
    saved = await started_fresh(world, first)
    kept_until = row(first, saved).expires
    world.lost()
    second = await world.journal_lost(first)
    assert await world.hub.start(KEY) == "cold"
    await world.reaches(second, "running")
    (offered,) = second.users.session(KEY).kept
    assert offered.id == saved
    assert row(second, saved).expires == kept_until
    await second.users.bring_back(KEY, saved, "ada", save_running=True)
    await world.until(lambda: world.hub.states[KEY] == "stopped")
    assert await world.hub.start(KEY) == "restore"
    await world.reaches(second, "running")
    assert world.node.works() == ["tensors"]


async def test_service_dies_between_journal_and_mark_the_next_one_writes_it(world):
    first, _ = await world.started("tensors")
    unmarked(world)
    saved = await put_aside(world, first)
    await world.kill(first)
    assert word(world, saved) is None
    world.node.switches.away.clear()
    await world.controller()
    await world.until(lambda: word(world, saved))


async def test_name_that_the_store_does_not_take_is_refused(world):
    controller, _ = await world.started("tensors")
    saved = await world.saved(controller, "bad")
    unmarked(world)
    with pytest.raises(StoreError):
        await controller.users.rename(KEY, saved, "good", "ada")
    assert row(controller, saved).name == "bad"
    world.node.switches.away.clear()
    await controller.users.rename(KEY, saved, "good", "ada")
    assert row(controller, saved).name == world.node.said(saved).name == "good"


async def test_mark_of_a_higher_term_raises_that_of_the_service(world):
    """The journal was lost, and so were the agents' folders: the store knows more."""
    first, _ = await world.started("tensors")
    saved = await started_fresh(world, first)
    await world.kill(first)
    there = world.node.saved[saved]
    number = MarkNumber(term=40, word=3)
    world.node.saved[saved] = there._replace(mark=(number, there.mark[1]))
    world.node.machine.term = b""
    second = await world.journal_lost(first)
    await world.until(lambda: row(second, saved) is not None)
    await world.reaches(second, "running")
    await second.users.bring_back(KEY, saved, "ada", save_running=True)
    await world.until(lambda: word(world, saved) is None)
    assert second._sessions.journal.term == 41


def back(world, checkpoint):
    gone_on = world.node.said(checkpoint).gone_on
    return gone_on.incarnation if gone_on else ""


async def returned(world, **settings):
    """Suspend it and bring it back; what it has come back from."""
    world.change(**settings)
    controller, _ = await world.started("tensors")
    saved = await world.suspend(controller)
    await world.resume(controller)
    return controller, saved


async def test_return_is_told_once_and_a_later_word_counts(world):
    before = world.now()
    controller, saved = await returned(world)
    await world.until(lambda: back(world, saved) == world.hub.incarnation())
    assert before < world.node.said(saved).gone_on.since <= world.now()
    number = number_of(world, saved)
    newer = await world.suspend(controller)
    assert number_of(world, saved) == number
    await controller.users.bring_back(KEY, saved, "ada")
    await world.until(lambda: word(world, newer))
    await world.reaches(controller, "running")
    await world.until(lambda: back(world, saved) == world.hub.incarnation())
    # It may be told before the store is listed with what was set aside for it.
    await world.until(lambda: number_of(world, saved) > number_of(world, newer))


async def test_return_that_was_not_told_is_by_the_next_service(world):
    unmarked(world)
    first, saved = await returned(world)
    await world.kill(first)
    assert back(world, saved) == ""
    world.node.switches.away.clear()
    await world.controller()
    await world.until(lambda: back(world, saved) == world.hub.incarnation())


async def test_return_of_what_has_ended_since_is_told_as_well(world):
    unmarked(world)
    controller, saved = await returned(world)
    incarnation = world.hub.incarnation()
    world.node.end(incarnation)
    world.hub.states[KEY] = "stopped"
    await world.reaches(controller, "suspended")
    world.node.switches.away.clear()
    await world.until(lambda: back(world, saved) == incarnation)


async def test_return_that_an_older_journal_has_missed_is_told(world):
    unmarked(world)
    first, _ = await world.started("tensors")
    saved = await world.suspend(first)
    backup = world.backup()
    await world.resume(first)
    world.node.switches.away.clear()
    await world.journal_put_back(first, backup)
    await world.until(lambda: back(world, saved) == world.hub.incarnation())


@pytest.mark.parametrize(
    ("rule", "answer"), [(0.0, "restore"), (3600.0, "ended_since_saved")]
)
async def test_journal_lost_the_store_alone_tells_that_a_session_has_gone_on(
    world, rule, answer
):
    """With a rule that saves it, what it came from is kept, and may be much older."""
    first, saved = await returned(world, save_every=rule)
    await world.until(lambda: back(world, saved))
    world.lost()
    await world.reaches(first, "suspended")
    world.hub.remembers(checkpoint=saved)  # still
    second = await world.journal_lost(first)
    await world.reaches(second, "suspended")
    assert await world.hub.start(KEY) == answer


async def test_wait_for_its_mark_keeps_no_checkpoint_from_expiring(world):
    unmarked(world)
    controller, saved = await returned(world, grace=3.0)
    await world.until(lambda: saved not in world.node.saved)
    assert row(controller, saved) is None
    assert world.phase(controller) == "running"


async def test_session_that_is_found_running_keeps_its_own_save_point(
    world, monkeypatch
):
    """It has not come back from that, and needs it as long as it runs."""
    world.change(grace=2.0)
    controller, _ = await world.started("tensors")
    await controller.users.save(KEY, "ada", "")
    await world.until(lambda: controller._sessions.row(KEY).checkpoint)
    point = controller._sessions.row(KEY).checkpoint
    incarnation = world.hub.incarnation()
    place = world.node.places.pop(incarnation)
    # Its agent does not find it, but it lives.
    monkeypatch.setattr(processes, "start_time", lambda pid: place.start)
    world.hub.states[KEY] = "stopped"
    await world.reaches(controller, "suspended")
    world.node.places[incarnation] = place
    world.hub.states[KEY] = "running"
    await world.reaches(controller, "running")
    kept = row(controller, point)
    assert (kept.keeping, kept.expires) == (Keeping.SUPERSEDED, None)
    assert kept.info.gone_on is None


async def test_what_the_service_has_passed_over_is_no_word_in_the_store(world):
    """It may be all that there is, once journal and store are put back."""
    controller, _ = await world.started("tensors")
    saved = await started_fresh(world, controller)
    world.node.copy(saved, id="older", generation=0, incarnation="older")
    world.node.saved["older"] = world.node.saved["older"]._replace(mark=UNSAID)
    await world.until(lambda: row(controller, "older") is not None)
    assert row(controller, "older").expires is not None
    await asyncio.sleep(10)
    assert word(world, "older") is None


def unmarked(world) -> None:
    """Nothing can be said of a checkpoint."""
    world.node.away("mark", error=StoreError(Reason.STORE_UNREACHABLE))


@pytest.fixture
async def quiet(world):
    """A service whose loops rest, with a session and what it has put aside."""
    first, _ = await world.started("tensors")
    saved = await started_fresh(world, first)
    await world.kill(first)
    for name in ("c1", "c2", "c3"):
        world.node.copy(saved, id=name)
    del world.node.saved[saved]
    world.change(tick_interval=3600.0, sample_interval=3600.0)
    controller = await world.controller()
    sessions = controller._sessions
    await asyncio.sleep(5)
    sessions.runtime(KEY).compared = True
    sessions.journal.drop(saved)
    for info in infos(world):
        world.node.saved[info.id] = world.node.saved[info.id]._replace(mark=UNSAID)
        sessions.keep(KEY, [CheckpointRow(info=info).set_aside(world.now() + 3600.0)])
    return controller


def suspended_in(sessions, info, **words):
    now = msgspec.structs.replace(
        sessions.row(KEY), phase=Phase.SUSPENDED, checkpoint=info.id
    )
    current = CheckpointRow(info=info, keeping=Keeping.CURRENT).said(**words)
    sessions.journal.save(now, None, [current])


def infos(world):
    return [each.info for each in world.node.saved.values()]


class Recorded:
    """An agent that notes the words, and refuses some."""

    def __init__(self, **refused):
        self.refused = refused
        self.words = []
        self.said = []

    async def order(self, checkpoint, order):
        self.words.append((checkpoint, order.said.aside is not None, order.word))
        self.said.append(order.said)
        if checkpoint in self.refused:
            raise self.refused[checkpoint]


async def test_word_that_is_refused_does_not_keep_the_others_from_being_said(
    world, quiet, monkeypatch
):
    monkeypatch.setattr(marks, "PER_TICK", 2)
    agent = Recorded(
        c1=Refused(Reason.FORMER_SERVICE, term=1, obeyed=1),
        c2=NotFound(Reason.CHECKPOINT_MISSING, checkpoint="c2"),
    )
    keeper = keeper_of(quiet._sessions, agent)
    for _ in range(2):
        await keeper.settle(infos(world))
    assert [each[0] for each in agent.words] == ["c1", "c2", "c3", "c1"]
    assert [each[2] for each in agent.words] == [1, 2, 3, 4]


async def test_word_that_was_taken_is_not_said_again_before_the_next_list(world, quiet):
    agent = Recorded()
    keeper = keeper_of(quiet._sessions, agent)
    for _ in range(3):
        await keeper.settle(infos(world))
    assert [each[0] for each in agent.words] == ["c1", "c2", "c3"]


@pytest.mark.parametrize("seconds", [None, 3600.0])
async def test_nothing_is_said_of_what_no_person_has_set_aside(world, quiet, seconds):
    """Else a lost journal would forget the question, and begin cold beside it."""
    aside = row(quiet, "c2").said(aside=None).kept(Keeping.ASIDE, seconds)
    quiet._sessions.journal.keep([aside])
    agent = Recorded()
    await keeper_of(quiet._sessions, agent).settle(infos(world))
    assert [each[0] for each in agent.words] == ["c1", "c3"]


async def test_return_that_only_the_store_knows_of_stays_and_another_is_told(
    world, quiet
):
    sessions, agent = quiet._sessions, Recorded()
    listed, _, _ = infos(world)
    suspended_in(sessions, listed)
    shown = GoneOn(incarnation="i2", since=5.0)
    keeper = keeper_of(sessions, agent)
    await keeper.settle([msgspec.structs.replace(listed, gone_on=shown)])
    assert agent.words == []
    suspended_in(sessions, listed, gone_on=GoneOn(incarnation="i3", since=6.0))
    await keeper.settle([msgspec.structs.replace(listed, gone_on=shown)])
    assert agent.said == [Mark(gone_on=GoneOn(incarnation="i3", since=6.0))]


async def test_return_is_told_late_only_where_the_session_still_goes_back_to_that(
    world, quiet
):
    """Else it would count as chosen after what was set aside since."""
    sessions, agent = quiet._sessions, Recorded()
    first, *_ = infos(world)
    suspended_in(sessions, first, gone_on=GoneOn(incarnation="i3", since=6.0))
    sessions.update(KEY, checkpoint="")
    await keeper_of(sessions, agent).settle(infos(world))
    assert [each[0] for each in agent.words] == ["c2", "c3"]


async def test_what_people_say_is_told_before_what_has_come_back(
    world, quiet, monkeypatch
):
    monkeypatch.setattr(marks, "PER_TICK", 1)
    sessions, agent = quiet._sessions, Recorded()
    first, *_ = infos(world)
    suspended_in(sessions, first, gone_on=GoneOn(incarnation="i3", since=6.0))
    keeper = keeper_of(sessions, agent)
    for _ in range(4):
        await keeper.settle(infos(world))
    assert [each[:2] for each in agent.words] == [
        ("c2", True),
        ("c3", True),
        ("c1", False),
    ]


async def test_nothing_is_said_of_a_session_that_was_not_compared(world, quiet):
    quiet._sessions.runtime(KEY).compared = False
    agent = Recorded()
    await keeper_of(quiet._sessions, agent).settle(infos(world))
    assert agent.words == []


async def test_older_one_that_is_chosen_is_said_to_be_after_what_was_left(world, quiet):
    """By the store alone it would be what its session has left, too."""
    older, _, newer = infos(world)
    sessions = quiet._sessions
    older, newer = (
        msgspec.structs.replace(info, session="s", generation=number)
        for number, info in enumerate((older, newer), 1)
    )
    # It was gone on from once, and then it was chosen.
    older = msgspec.structs.replace(older, gone_on=GoneOn(incarnation="i2", since=5.0))
    suspended_in(sessions, older, gone_on=None)
    agent = Recorded()
    keeper = keeper_of(sessions, agent)
    await keeper.settle([older, newer])
    await keeper.settle([older, newer])
    assert agent.words == [("c3", True, 1), ("c1", False, 2)]
    assert agent.said[1] == Mark()
    # The store has been listed since.
    sessions.runtime(KEY).told = {}
    left = msgspec.structs.replace(
        newer, aside=row(quiet, "c3").info.aside, word=(1, 1)
    )
    await keeper.settle([msgspec.structs.replace(older, word=(1, 2)), left])
    assert len(agent.words) == 2
    await keeper.settle([older, left])
    assert agent.words[2:] == [("c1", False, 3)]


async def test_older_one_is_not_said_to_be_chosen_before_what_was_left(world, quiet):
    older, _, newer = infos(world)
    sessions = quiet._sessions
    older, newer = (
        msgspec.structs.replace(info, session="s", generation=number)
        for number, info in enumerate((older, newer), 1)
    )
    suspended_in(sessions, older)
    agent = Recorded(c3=Refused(Reason.FORMER_SERVICE, term=1, obeyed=1))
    await keeper_of(sessions, agent).settle([older, newer])
    assert agent.words == [("c3", True, 1)]

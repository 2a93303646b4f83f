"""Sessions nap for one that wakes and finds its card full; it waits where none may."""

from __future__ import annotations

import pytest

from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    SessionKey,
)
from jupyterhub_gpu_reclaim.controlplane.decide.room import CROWDED_WAKES
from tests.controlplane.conftest import KEY as ADA

BOB, EVE = SessionKey("bob"), SessionKey("eve")
YES = Decision(reclaim=True, code="nap_room", message="Idle; somebody waits.")
NO = Decision(reclaim=False, code="recently_active", message="Active.")


class Gives:
    """Those that are named may nap for others, each once, as in a long cool_down."""

    room_after = 1.0

    def __init__(self, *keys: SessionKey) -> None:
        self.keys = set(keys)

    def after(self, terms):
        return 1.0

    def __call__(self, snapshot, now):
        return [NO]

    def for_room(self, snapshot, now):
        waits = snapshot.backoff_until is not None and snapshot.backoff_until > now
        free = snapshot.key in self.keys and snapshot.made_room_at is None
        return [YES if free and not waits and snapshot.usage else NO]


class Crowd:
    """Three sessions of 40 on a card of 100; Ada's naps, Bob's and Eve's are awake."""

    def __init__(self, world, policy) -> None:
        self.world, self.node, self.policy = world, world.node, policy

    async def start(self, journal=None, **more):
        self.node.card = 100
        self.places = {}
        for key in (ADA, BOB, EVE):
            name = await self.world.running(f"tensors of {key}", key)
            self.places[key] = self.node.places[name]
            self.places[key].gpu_memory = 40 if key is not ADA else 10
        await self.again(journal, **more)
        await self.controller.users.nap(ADA, "root")
        await self.phase(ADA, "napping")
        self.places[ADA].gpu_memory = 40
        return self

    async def again(self, journal=None, **more):
        """A new service, which has seen what each session holds."""
        self.controller = await self.world.controller(journal, naps=self.policy, **more)

        def seen() -> bool:
            views = {view.key: view for view in self.controller.users.sessions()}
            awake = [k for k, p in self.places.items() if not p.nap]
            return all(k in views and views[k].gpus for k in awake)

        await self.world.until(seen)

    async def phase(self, key, wanted):
        await self.world.until(lambda: self.world.phase(self.controller, key) == wanted)

    def wake(self, key):
        """Its user runs a cell."""
        return self.node.begin_wake(self.places[key].incarnation)

    def facts(self, key):
        return self.controller.users.session(key).facts

    def states(self):
        return [self.places[key].state.value for key in (ADA, BOB, EVE)]

    def asked(self, key):
        """How often it was put to nap for others."""
        lines = self.controller.users.audit(key)
        return [line.what for line in lines].count("makes room")


@pytest.fixture
def slow(world):
    """Ticks are too rare to be of any use; were the first one lost, the next comes."""
    world.change(tick_interval=12.0)


async def test_idle_session_naps_for_one_that_wakes_without_a_tick(world, slow):
    crowd = await Crowd(world, Gives(BOB)).start()
    crowd.wake(ADA)
    await crowd.phase(ADA, "running")
    assert crowd.states() == ["running", "napping", "running"]
    assert world.phase(crowd.controller, BOB) == "napping"
    lines = [line.what for line in crowd.controller.users.audit(BOB)[:2]]
    assert lines == ["naps", "makes room"]
    assert crowd.controller.users.audit(BOB)[1].code == "nap_room"
    assert (crowd.asked(BOB), crowd.asked(EVE)) == (1, 0)


async def test_nobody_that_may_not_nap_does_and_place_and_reason_are_told(world, slow):
    crowd = await Crowd(world, Gives()).start()
    crowd.wake(ADA)
    await world.until(lambda: crowd.facts(ADA).place == 1)
    (waiting,) = crowd.controller.waiting()
    assert waiting.key == ADA
    assert "40 B needed, 20 B free" in waiting.reason
    assert crowd.states() == ["napping", "running", "running"]
    counted = crowd.controller.metrics_snapshot()
    assert (counted.waiting, counted.counters.wakes_unserved) == (1, 1)
    # As soon as one may, it does: found by the ticks, which come at last.
    crowd.policy.keys.add(EVE)
    crowd.controller._room.refresh()
    await crowd.phase(ADA, "running")
    assert not crowd.facts(ADA).place
    assert crowd.states() == ["running", "running", "napping"]


async def test_session_that_waits_is_not_suspended_and_counts_when_it_is_served(world):
    asked = []

    def decide(snapshot, now):
        asked.append(snapshot)
        return [world.verdict]

    crowd = await Crowd(world, Gives()).start(decide=decide)
    crowd.wake(ADA)
    await world.until(lambda: any(each.waking for each in asked if each.key == ADA))
    crowd.node.end(crowd.places[EVE].incarnation)
    await crowd.phase(ADA, "running")
    counted = crowd.controller.metrics_snapshot().counters
    assert counted.operations["wake", "ok"] == 1
    await world.until(lambda: counted.waits.get("served"))
    assert counted.waits["served"].count == 1


async def test_wake_that_has_room_and_is_not_back_yet_has_not_left(world):
    crowd = await Crowd(world, Gives()).start()
    crowd.wake(ADA)
    await world.until(lambda: crowd.facts(ADA).place)
    crowd.node.hold_at = "gpu back"
    crowd.node.end(crowd.places[EVE].incarnation)
    await world.until(lambda: not crowd.facts(ADA).place)
    crowd.node.hold_at = ""
    counters = crowd.controller.metrics_snapshot().counters
    await world.until(lambda: counters.waits)
    assert list(counters.waits) == ["served"]


async def test_next_one_naps_where_the_first_cannot(world):
    crowd = await Crowd(world, Gives(BOB, EVE)).start()
    napping = crowd.node.napping

    async def fails_for_bob(place):
        crowd.node.nap_failure = (
            Failure(code="nap_failed", message="No.", retryable=True)
            if place.key == BOB
            else None
        )
        async for event in napping(place):
            yield event

    crowd.node.napping = fails_for_bob
    crowd.wake(ADA)
    await crowd.phase(ADA, "running")
    assert crowd.states() == ["running", "running", "napping"]
    assert (crowd.asked(BOB), crowd.asked(EVE)) == (1, 1)


async def test_card_on_which_wakes_find_nobody_is_crowded(world):
    crowd = await Crowd(world, Gives()).start()
    for count in range(1, CROWDED_WAKES + 1):
        crowd.wake(ADA)
        await world.until(
            lambda: (
                crowd.controller.metrics_snapshot().counters.wakes_unserved == count  # noqa: B023
            )
        )
        assert bool(crowd.controller.crowded()) is (count == CROWDED_WAKES)
        await crowd.node.cancel(crowd.places[ADA].incarnation)
        await world.until(lambda: crowd.places[ADA].shortage is None)
        await world.until(lambda: not crowd.facts(ADA).place)
    (card,) = crowd.controller.crowded().values()
    assert card.wakes == CROWDED_WAKES
    assert crowd.controller.metrics_snapshot().crowded_gpus == 1


async def test_tab_hears_when_the_memory_is_back(world, slow):
    crowd = await Crowd(world, Gives()).start()
    crowd.node.card = None
    crowd.node.hold_at = "gpu back"
    crowd.wake(ADA)
    await world.until(lambda: crowd.facts(ADA).waking_until)
    crowd.node.hold_at = ""
    await crowd.phase(ADA, "running")
    assert not crowd.facts(ADA).waking_until

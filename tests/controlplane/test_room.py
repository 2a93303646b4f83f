"""Sessions nap for one that wakes and finds its card full; it waits where none may."""

import pytest

from jupyterhub_gpu_reclaim.common.models import Decision, Failure, SessionKey
from simulation.doubles.machine import GIB
from tests.support.counted import counted
from tests.support.simulated import KEY as ADA

BOB, EVE = SessionKey("bob", "b"), SessionKey("eve", "e")
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
    """Sessions of 7 GiB on a card of 16: Ada's naps, Bob's and Eve's are awake."""

    def __init__(self, world, *gives: SessionKey, **more) -> None:
        self.world, self.policy, self.more = world, Gives(*gives), more

    async def start(self):
        world = self.world
        self.trees = {}
        self.controller = await world.controller(naps=self.policy, **self.more)
        for key in (ADA, BOB, EVE):
            name = await world.running(f"tensors of {key}", key, gpu=7 * GIB)
            self.trees[key] = world.node.places[name].tree
            await world.reaches(self.controller, "running", key)
            if key is ADA:
                await self.controller.users.nap(ADA, "root")
                await self.phase(ADA, "napping")
        await world.until(lambda: all(map(self.seen, (BOB, EVE))))
        return self

    def seen(self, key) -> bool:
        return bool(self.controller.users.session(key).gpus)

    async def phase(self, key, wanted):
        await self.world.reaches(self.controller, wanted, key)

    def wake(self, key):
        self.trees[key].unread += 1

    def facts(self, key):
        return self.controller.users.session(key).facts

    def awake(self):
        return [key.user for key, tree in self.trees.items() if tree.on_gpu]

    def asked(self, key):
        """How often it was put to nap for others."""
        lines = self.controller.users.audit(key)
        return [line.what for line in lines].count("makes room")

    async def leaves(self, key):
        await self.world.hub.stop(key)


@pytest.fixture
def slow(world):
    """Ticks are too rare to be of any use; were the first one lost, the next comes."""
    world.change(tick_interval=60.0)


async def test_idle_session_naps_for_one_that_wakes_without_a_tick(world, slow):
    crowd = await Crowd(world, BOB).start()
    crowd.wake(ADA)
    await crowd.phase(ADA, "running")
    assert crowd.awake() == ["ada", "eve"]
    assert world.phase(crowd.controller, BOB) == "napping"
    lines = [line.what for line in crowd.controller.users.audit(BOB)[:2]]
    assert lines == ["naps", "makes room"]
    assert crowd.controller.users.audit(BOB)[1].code == "nap_room"
    assert (crowd.asked(BOB), crowd.asked(EVE)) == (1, 0)


async def test_nobody_that_may_not_nap_does_and_the_place_is_told(world, slow):
    crowd = await Crowd(world).start()
    crowd.wake(ADA)
    await world.until(lambda: crowd.facts(ADA).place == 1)
    (waiting,) = crowd.controller.waiting()
    assert waiting.key == ADA
    assert crowd.awake() == ["bob", "eve"]
    assert counted(crowd.controller.totals, "sessions_waiting") == 1
    # As soon as one may, it does: found by the ticks, which come at last.
    crowd.policy.keys.add(EVE)
    await crowd.phase(ADA, "running")
    assert not crowd.facts(ADA).place
    assert crowd.awake() == ["ada", "bob"]


async def test_session_that_waits_is_not_suspended_and_counts_when_it_is_served(world):
    asked = []

    def decide(snapshot, now):
        asked.append(snapshot)
        return [world.verdict]

    crowd = await Crowd(world, decide=decide).start()
    crowd.wake(ADA)
    await world.until(lambda: any(each.waking for each in asked if each.key == ADA))
    world.node.hold_at = "gpu back"
    await crowd.leaves(EVE)
    await world.until(lambda: not crowd.facts(ADA).place)  # it is not back yet
    world.node.hold_at = ""
    await crowd.phase(ADA, "running")
    counters = crowd.controller.counters
    assert counted(counters, "operations_total", operation="wake", outcome="ok") == 1
    assert counted(counters, "wait_duration_seconds_count") == 1


async def test_next_one_naps_where_the_first_cannot(world):
    crowd = await Crowd(world, BOB, EVE).start()
    failed = Failure(code="nap_failed", message="No.", retryable=True)
    world.node.failures_of[BOB] = {"gpu out": failed}
    crowd.wake(ADA)
    await crowd.phase(ADA, "running")
    assert crowd.awake() == ["ada", "bob"]
    assert (crowd.asked(BOB), crowd.asked(EVE)) == (1, 1)


async def test_tab_hears_when_the_memory_is_back(world, slow):
    crowd = await Crowd(world).start()
    await crowd.leaves(EVE)
    world.node.hold_at = "gpu back"
    crowd.wake(ADA)
    await world.until(lambda: crowd.facts(ADA).waking_until)
    world.node.hold_at = ""
    await crowd.phase(ADA, "running")
    assert not crowd.facts(ADA).waking_until

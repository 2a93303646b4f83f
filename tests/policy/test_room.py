"""Who naps for those that wake: the longest idle with the most memory, and no more."""

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.models import (
    GpuSample,
    Phase,
    SessionKey,
    SessionPolicy,
)
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.nap import NapPolicy
from jupyterhub_gpu_reclaim.policy.room import RoomWant, choose_for_room

CARD, OTHER = "a" * 32, "b" * 32
ADA, BOB, EVE, ZOE = (SessionKey(name) for name in ("ada", "bob", "eve", "zoe"))


def decider(after=180.0, room_after=60.0, **guards):
    times = {"nap_after": after, "room_after": room_after}
    return NapPolicy(IdlePolicy(), Guards(**guards), **times)


@pytest.fixture
def session(snapshot, now):
    """One that has been idle for so long and holds so much of a card."""

    def make(key, idle, memory, card=CARD, **changes):
        usage = {"last_active": now - idle}
        gpus = [GpuSample(uuid=card, memory=memory)]
        return snapshot(usage, key=key, gpus=gpus, since=now - 3600, **changes)

    return make


def choose(sessions, wants, now, **options):
    return choose_for_room(sessions, wants, now, decider(**options).for_room)


def want(key, lacking, card=CARD):
    return RoomWant(key=key, lacking={card: lacking})


def test_longest_idle_with_the_most_memory_goes_and_nobody_beside_it(session, now):
    sessions = [session(ADA, 600, 10), session(BOB, 100, 10), session(EVE, 600, 40)]
    choice = choose(sessions, [want(ZOE, 30)], now)
    assert choice == {EVE: ZOE}
    assert choose(sessions, [want(ZOE, 45)], now) == {EVE: ZOE, ADA: ZOE}


def test_who_became_needless_is_spared(session, now):
    sessions = [session(ADA, 9000, 10), session(BOB, 100, 40)]
    assert choose(sessions, [want(ZOE, 40)], now) == {BOB: ZOE}


def test_nobody_naps_where_all_together_are_not_enough(session, now):
    sessions = [session(ADA, 600, 10), session(BOB, 600, 10)]
    choice = choose(sessions, [want(ZOE, 30), want(EVE, 15)], now)
    assert choice == {ADA: EVE, BOB: EVE}


def test_only_memory_of_the_card_counts(session, now):
    sessions = [session(ADA, 600, 99, OTHER), session(BOB, 100, 10)]
    assert choose(sessions, [want(ZOE, 10)], now) == {BOB: ZOE}
    both = RoomWant(key=ZOE, lacking={CARD: 10, OTHER: 10})
    assert choose(sessions, [both], now) == {ADA: ZOE, BOB: ZOE}
    unknown = session(EVE, 600, None)
    assert choose([unknown], [want(ZOE, 1)], now) == {}


def test_each_session_gives_its_memory_to_one(session, now):
    sessions = [session(ADA, 600, 10), session(BOB, 100, 10)]
    choice = choose(sessions, [want(ZOE, 10), want(EVE, 10)], now)
    assert choice == {ADA: ZOE, BOB: EVE}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"kept_until": 1_700_000_060.0}, "kept"),
        ({"made_room_at": 1_700_000_000.0 - 599}, "nap_made_room"),
        ({"since": 1_700_000_000.0 - 59}, "nap_woken"),
        ({"terms": SessionPolicy(nap_after=0.0)}, "nap_off"),
    ],
)
def test_what_holds_a_session_keeps_it_from_napping_for_others(
    session, now, changes, code
):
    held = msgspec.structs.replace(session(ADA, 600, 40), **changes)
    assert decider().for_room(held, now)[0].code == code
    assert choose([held], [want(ZOE, 1)], now) == {}


@pytest.mark.parametrize(
    "usage",
    [
        {"last_active": 1_700_000_000.0 - 59},
        {"busy_kernel": "a.ipynb"},
        {"gpu_memory": 0},
    ],
)
def test_who_is_active_never_naps_for_others(session, now, usage):
    active = session(ADA, 600, 40)
    active = msgspec.structs.replace(
        active, usage=msgspec.structs.replace(active.usage, **usage)
    )
    assert choose([active], [want(ZOE, 1)], now) == {}


def test_only_what_runs_naps(session, now):
    for phase in set(Phase) - {Phase.RUNNING}:
        other = session(ADA, 600, 40, phase=phase)
        assert choose([other], [want(ZOE, 1)], now) == {}


def test_it_naps_again_for_others_after_the_cool_down_that_its_rule_sets(session, now):
    made = session(ADA, 600, 40, made_room_at=now - 100)
    verdict = decider().for_room(made, now)[0]
    assert (verdict.code, verdict.at) == ("nap_made_room", now + 500)
    ruled = msgspec.structs.replace(made, terms=SessionPolicy(cool_down=100.0))
    verdict = decider().for_room(ruled, now)[0]
    assert (verdict.reclaim, verdict.code) == (True, "nap_room")


def test_nobody_naps_for_others_where_that_is_off(session, now):
    verdict = decider(room_after=0.0).for_room(session(ADA, 600, 40), now)[0]
    assert (verdict.reclaim, verdict.code) == (False, "nap_room_off")

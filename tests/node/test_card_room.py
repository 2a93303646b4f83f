"""Room on the cards: promised once, in turn, and never for ever."""

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.node.operations.card_room import HEAD_START, CardRoom
from jupyterhub_gpu_reclaim.node.session import Session
from jupyterhub_gpu_reclaim.sampling.gpu import CardUse, ProcessUse

CARD, OTHER = "a" * 32, "b" * 32


def waker(incarnation: str, *key: str) -> Session:
    return Session(incarnation, SessionKey(*key), 1, 1, holding=False)


ADA, BOB, EVE = (waker(f"i-{name}", name) for name in ("ada", "bob", "eve"))
ADA_TOO = waker("i-ada-2", "ada", "2")


def cards(free: int | None, *, users: int = 1) -> list[CardUse]:
    uses = [ProcessUse(pid=pid, memory=1) for pid in range(users)]
    there = (CARD, OTHER)
    return [CardUse(uuid=uuid, name="H", free=free, processes=uses) for uuid in there]


def test_promised_room_is_not_promised_again_until_it_is_released():
    room = CardRoom()
    assert room.promise("a", {CARD: 60}, cards(100), 0.0, ADA) is None
    short = room.promise("b", {CARD: 60}, cards(100), 0.0, BOB)
    assert [(s.uuid, s.needed, s.free) for s in short.cards] == [(CARD, 60, 40)]
    assert room.promise("c", {OTHER: 60}, cards(100), 0.0, EVE) is None
    room.release("a")
    assert room.promise("b", {CARD: 60}, cards(100), 1.0, BOB) is None


def test_card_that_does_not_tell_is_tried():
    assert CardRoom().promise("a", {CARD: 60}, cards(None), 0.0, ADA) is None


def test_wakes_are_served_in_turn_each_user_once_before_anybody_twice():
    room = CardRoom()
    for at, one in enumerate((ADA, ADA_TOO, BOB)):
        assert room.promise(one.incarnation, {CARD: 60}, cards(0), float(at), one)
    assert room.promise(ADA_TOO.incarnation, {CARD: 60}, cards(0), 2.0, ADA_TOO)
    places = [room.shortage_of(w.incarnation, 2.0).place for w in (ADA, BOB, ADA_TOO)]
    assert places == [1, 2, 3]
    assert room.shortage_of(BOB.incarnation, 4.0).waited == 2.0
    # There is room for one: the first of them has it, whoever asks.
    for one in (BOB, ADA_TOO):
        short = room.promise(one.incarnation, {CARD: 60}, cards(60), 3.0, one)
        assert [(s.needed, s.free) for s in short.cards] == [(60, 60)]
    assert room.promise(ADA.incarnation, {CARD: 60}, cards(60), 4.0, ADA) is None
    room.release(ADA.incarnation)
    assert room.promise(BOB.incarnation, {CARD: 60}, cards(60), 4.0, BOB) is None


def test_one_with_large_needs_goes_first_for_a_minute_and_holds_nobody_up_for_ever():
    room = CardRoom()
    now = 0.0
    assert room.promise(ADA.incarnation, {CARD: 90}, cards(10), now, ADA)
    while now < HEAD_START - 5:
        now += 5
        assert room.promise(ADA.incarnation, {CARD: 90}, cards(10), now, ADA)
        assert room.promise(BOB.incarnation, {CARD: 5}, cards(10), now, BOB).place == 2
    now += 5
    assert room.promise(ADA.incarnation, {CARD: 90}, cards(10), now, ADA)
    assert room.promise(BOB.incarnation, {CARD: 5}, cards(10), now, BOB) is None


def test_room_that_comes_free_for_one_that_waits_long_is_not_taken_by_a_newcomer():
    room, now = CardRoom(), 0.0
    while now < HEAD_START + 5:
        assert room.promise(ADA.incarnation, {CARD: 60}, cards(10), now, ADA)
        now += 5
    # Just now others have been put to nap for it, and it looks twice a second.
    assert room.promise(BOB.incarnation, {CARD: 5}, cards(60), now, BOB).place == 2
    assert room.promise(ADA.incarnation, {CARD: 60}, cards(60), now, ADA) is None


def test_who_wants_another_card_does_not_wait_for_its_turn():
    room = CardRoom()
    assert room.promise(ADA.incarnation, {CARD: 90}, cards(10), 0.0, ADA)
    assert room.promise(BOB.incarnation, {OTHER: 5}, cards(10), 0.0, BOB) is None


def test_what_goes_on_with_what_it_had_takes_no_turn():
    room = CardRoom()
    assert room.promise(ADA.incarnation, {CARD: 90}, cards(10), 0.0, ADA)
    assert room.promise("undo", {CARD: 10}, cards(10), 0.0) is None


def test_one_that_asks_no_more_gives_its_turn_up():
    room = CardRoom()
    assert room.promise(ADA.incarnation, {CARD: 90}, cards(10), 0.0, ADA)
    assert room.promise(BOB.incarnation, {CARD: 5}, cards(10), 9.0, BOB)
    assert room.promise(BOB.incarnation, {CARD: 5}, cards(10), 11.0, BOB) is None
    assert room.shortage_of(ADA.incarnation, 11.0) is None

    assert room.promise(ADA.incarnation, {CARD: 90}, cards(10), 12.0, ADA)
    room.leave(ADA.incarnation)
    assert room.shortage_of(ADA.incarnation, 12.0) is None


def test_two_servers_of_one_name_wait_both():
    room = CardRoom()
    twin = waker("i-twin", "ada")
    for one in (ADA, twin):
        assert room.promise(one.incarnation, {CARD: 60}, cards(0), 0.0, one)
    places = {room.shortage_of(w.incarnation, 0.0).place for w in (ADA, twin)}
    assert places == {1, 2}

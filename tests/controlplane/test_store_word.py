"""Who says which store is meant: the journal, the agents, an administrator."""

from __future__ import annotations

import pytest

from jupyterhub_gpu_reclaim.common.node_status import StoreOrder, StoreStatus
from jupyterhub_gpu_reclaim.controlplane.decide.store import settle
from jupyterhub_gpu_reclaim.controlplane.journal import store_word
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.model.rows import MeantStore

NEW = StoreStatus(state="new")
BEGIN = StoreOrder(store="made", begin=True)


def has(store, word=0, state="here"):
    return StoreStatus(state=state, store=store, word=word)


def settled(meant, *, may_begin=True, **told):
    return settle(meant, told, may_begin=may_begin, new_id=lambda: "made")


def test_first_day_one_agent_begins_a_store_and_the_others_take_its_word():
    meant, orders = settled(None, a=NEW, b=NEW)
    assert meant == MeantStore("made", 0, begun=False)
    assert orders == {"a": BEGIN}
    assert settled(meant, a=NEW, b=NEW) == (meant, {"a": BEGIN})  # it was lost
    meant, orders = settled(meant, a=has("made"), b=NEW)
    assert meant == MeantStore("made", 0, begun=True)
    assert orders == {"b": StoreOrder(store="made")}
    assert settled(meant, a=has("made"), b=has("made")) == (meant, {})


def test_no_second_store_is_begun_where_the_journal_knows_one():
    meant = MeantStore("x", 0, begun=True)
    assert settled(meant, a=NEW) == (meant, {"a": StoreOrder(store="x")})


def test_no_store_is_begun_where_something_is_known_to_be_in_one():
    assert settled(None, may_begin=False, a=NEW) == (None, {})


def test_journal_that_was_lost_takes_the_agents_word():
    meant, orders = settled(None, a=has("x", 2, "absent"), b=NEW)
    assert meant == MeantStore("x", 2, begun=True)
    assert orders == {"b": StoreOrder(store="x", word=2)}


def test_order_to_begin_where_another_has_begun_takes_what_was_begun():
    meant = MeantStore("made", 0, begun=False)
    assert settled(meant, a=has("x"))[0] == MeantStore("x", 0, begun=True)


def test_two_agents_of_two_stores_are_not_chosen_between():
    assert settled(None, a=has("x"), b=has("y")) == (None, {})
    meant = MeantStore("x", 0, begun=True)
    assert settled(meant, b=has("y")) == (meant, {"b": StoreOrder(store="x")})


def test_no_third_store_is_begun_beside_two_that_are_not_chosen_between():
    assert settled(None, a=has("x"), b=has("y"), c=NEW) == (None, {})
    unbegun = MeantStore("made", 0, begun=False)
    assert settled(unbegun, a=has("x"), b=has("y"), c=NEW) == (unbegun, {})


def test_administrators_word_goes_to_all():
    meant = MeantStore("x", 0, begun=True)
    meant, orders = settled(meant, a=has("y", 1), b=has("x"))
    assert meant == MeantStore("y", 1, begun=True)
    assert orders == {"b": StoreOrder(store="y", word=1)}


@pytest.mark.parametrize("begun", [False, True])
def test_journal_keeps_one(begun, tmp_path):
    url = f"sqlite:///{tmp_path}/journal"
    journal = Journal(url)
    assert store_word.meant(journal) is None
    store_word.mean(journal, MeantStore("x", 0, begun=False))
    store_word.mean(journal, MeantStore("x", 3, begun=begun))
    journal.close()
    again = Journal(url)
    assert store_word.meant(again) == MeantStore("x", 3, begun)
    again.close()

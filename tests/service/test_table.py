"""The managers' table: filters, order and pages, and the pictures beside it; pure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    GpuSample,
    Phase,
    SessionFacts,
    SessionKey,
    SessionView,
    Usage,
)
from jupyterhub_gpu_reclaim.common.node_status import (
    CardStatus,
    NodeHealth,
    NodeStatus,
)
from jupyterhub_gpu_reclaim.service.web.manager.table import ROWS, SORTS, Wanted, table

NOW = 1_700_000_000.0


def session(user: str, server: str = "", phase: Phase = Phase.RUNNING, **more):
    key = SessionKey(user, server)
    facts = SessionFacts(**more.pop("facts", {}))
    return SessionView(key=key, phase=phase, since=NOW, facts=facts, **more)


def found(views, query: str) -> list[str]:
    return [str(view.key) for view in table(views, Wanted.of(query)).views]


def busy(user: str, **more):
    verdict = Decision(reclaim=False, code="kernel_busy", message="Kernel x is busy.")
    return session(user, verdict=verdict, **more)


def test_table_is_filtered_by_text_state_node_and_reason():
    views = [
        busy("ada", facts={"node": "n1"}),
        session("bob", "train", facts={"node": "n2"}),
        session("cy", phase=Phase.SUSPENDED, facts={"node": "n1"}),
    ]
    assert found(views, "text=TRAIN+bob") == ["bob/train"]
    assert found(views, "text=kernel") == ["ada/"]
    assert found(views, "state=suspended") == ["cy/"]
    assert found(views, "node=n1") == ["ada/", "cy/"]
    assert found(views, "why=kernel_busy") == ["ada/"]
    assert found(views, "text=nothing") == []
    one = table(views, Wanted.of("state=suspended"))
    assert (one.known, one.found) == (3, 1)
    assert [(c.value, c.count) for c in one.nodes] == [("n1", 2), ("n2", 1)]
    assert [(c.words, c.count) for c in one.whys] == [("kernel busy", 1)]


def test_table_is_sorted_with_the_most_first_and_the_unknown_last():
    def holding(user: str, memory: int | None):
        gpus = [] if memory is None else [GpuSample(uuid=user, memory=memory)]
        return session(user, gpus=gpus)

    views = [holding("a", None), holding("b", 1), holding("c", 9)]
    assert found(views, "sort=gpu") == ["c/", "b/", "a/"]
    assert found(views, "sort=gpu&down=1") == ["b/", "c/", "a/"]
    assert found(views, "sort=session&down=1") == ["c/", "b/", "a/"]


def test_table_begins_with_the_most_memory_that_is_held_for_longest_unused():
    def holding(user: str, memory: int, unused: float | None, **more):
        last = None if unused is None else NOW - unused
        usage = Usage(at=NOW, watched=60, sample_age=1, last_active=last)
        gpus = [GpuSample(uuid=user, memory=memory)]
        return session(user, gpus=gpus, usage=usage, **more)

    views = [
        holding("busy", 80, 0),
        holding("large", 80, 3600),
        holding("long", 40, 9000),
        holding("unknown", 80, None),
        holding("gone", 80, 9000, phase=Phase.SUSPENDED),
    ]
    assert found(views, "")[:2] == ["long/", "large/"]
    assert found(views, "sort=wasted") == found(views, "")
    assert found(views, "down=1")[:2] == ["large/", "long/"]


def holder(user: str, unused: float = 3600, percent: float = 0.0, **cards: int):
    """A session with so many GB on each card, unused for so long."""
    usage = Usage(
        at=NOW,
        watched=60,
        sample_age=1,
        last_active=NOW - unused,
        gpu_percent=percent,
    )
    gpus = [
        GpuSample(uuid=card, name="H200", memory=gb * 10**9)
        for card, gb in cards.items()
    ]
    return session(user, usage=usage, gpus=gpus, facts={"node": "n1"})


def test_gpu_that_works_is_not_wasted_however_long_nobody_has_looked():
    views = [holder("trains", unused=9e5, percent=99, x=80), holder("idle", x=1)]
    assert found(views, "") == ["idle/", "trains/"]


def test_rows_stand_below_their_card_the_one_with_the_most_waste_first():
    views = [
        holder("small", aa=2),
        holder("large", bb=40),
        holder("busy", percent=90, bb=30),
        holder("two", aa=10, bb=5),
        session("none"),
    ]
    status = NodeStatus(
        host="n1",
        version="1",
        cards=[CardStatus(uuid="bb", total=141 * 10**9, busy_percent=74.0)],
    )
    nodes = [NodeHealth(node="n1", status=status)]
    groups = table(views, Wanted.of("by=card"), nodes).groups
    assert [(one.name, [str(v.key) for v in one.views]) for one in groups] == [
        ("H200 bb on n1", ["large/", "busy/"]),
        ("H200 aa on n1", ["two/", "small/"]),
        ("Without a GPU", ["none/"]),
    ]
    first, second, _ = groups
    assert first.about == "75 GB of 141 GB held by 3 sessions, 74 % busy"
    assert first.wasted == "45 GB\N{MIDDLE DOT}h"
    assert first.also == "two/ (5.0 GB)"
    assert (second.about, second.also) == ("12 GB held by 2 sessions", "")
    # a filter leaves rows out, and the card's sums as they are
    (alone,) = table(views, Wanted.of("by=card&text=busy"), nodes).groups
    assert (alone.about, len(alone.views)) == (first.about, 1)
    assert table(views, Wanted.of("")).groups == []


@pytest.mark.parametrize("column", SORTS)
def test_every_column_sorts_sessions_of_which_nothing_is_known(column):
    used = Usage(at=NOW, watched=1, sample_age=1, last_active=NOW - 60, gpu_percent=3)
    views = [
        session("a"),
        busy("b", usage=used, gpus=[GpuSample(uuid="x", memory=1)], suspends_at=NOW),
        session("c", phase=Phase.SUSPENDED, facts={"node": "n1"}),
    ]
    for query in (f"sort={column}", f"sort={column}&down=1"):
        assert sorted(found(views, query)) == ["a/", "b/", "c/"]


def test_table_is_cut_into_pages_and_a_page_too_far_is_the_last():
    views = [session(f"u{n:03d}") for n in range(2 * ROWS + 1)]
    assert found(views, "page=2")[0] == f"u{ROWS:03d}/"
    last = table(views, Wanted.of("page=99"))
    assert (last.page, last.pages, last.first, last.last) == (
        3,
        3,
        2 * ROWS + 1,
        2 * ROWS + 1,
    )
    nobody = table([], Wanted())
    assert (nobody.pages, nobody.first, nobody.last) == (1, 0, 0)


@settings(max_examples=100)
@given(st.text(max_size=60))
def test_any_address_makes_a_table_and_its_own_address_makes_the_same(query):
    wanted = Wanted.of(query)
    assert Wanted.of(wanted.query(page=wanted.page)) == wanted
    table([busy("ada")], wanted)


def test_head_of_a_sorted_column_leads_to_the_other_way_round():
    wanted = Wanted.of("sort=idle&text=x&page=4")
    assert wanted.sorted_by("idle") == "text=x&sort=idle&down=1"
    assert Wanted.of("sort=idle&down=1").sorted_by("idle") == "sort=idle"
    assert wanted.sorted_by("gpu") == "text=x&sort=gpu"
    assert wanted.order == "descending"  # the longest idle first
    assert Wanted.of("sort=session&down=1").order == "descending"
    assert Wanted.of("").order == "descending"  # the most that is wasted first
    assert Wanted.of("sort=session").order == "ascending"

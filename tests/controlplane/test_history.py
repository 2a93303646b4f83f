"""The last hour of each session, and the totals of all: bounded, and never made up."""

from __future__ import annotations

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    GpuSample,
    Phase,
    Sample,
    SessionKey,
    Usage,
    Waiting,
)
from jupyterhub_gpu_reclaim.controlplane.journal import schema
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.model.accounting import GpuCount
from jupyterhub_gpu_reclaim.controlplane.model.rows import (
    CheckpointRow,
    Keeping,
    SessionRow,
)
from jupyterhub_gpu_reclaim.controlplane.sessions.history import MINUTES, added
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions
from jupyterhub_gpu_reclaim.controlplane.sessions.totals import (
    KEPT,
    MOST_POINTS,
    STEP,
    TotalsLog,
)
from tests.support.manual_clock import ManualClock

ADA, BOB = SessionKey("ada"), SessionKey("bob", "train")
START = 1_700_000_000.0 // STEP * STEP


def sample(at: float, percent=None, memory=None, card="a", key=ADA) -> Sample:
    cards = [GpuSample(uuid=card, memory=memory, sm_percent=percent)]
    return Sample(incarnation="i1", key=key, at=at, gpus=cards)


def history_of(*samples: Sample):
    history = None
    for each in samples:
        history = added(history, each)
    return history


def test_line_has_the_mean_of_each_minute_and_the_newest_last():
    told = ((0, 10.0), (10, 30.0), (60, 90.0))
    history = history_of(*(sample(START + at, x, memory=int(x)) for at, x in told))
    line = history.line(ADA, START + 61)
    assert line.gpu_percent == [None] * (MINUTES - 2) + [20.0, 90.0]
    assert line.memory == [None] * (MINUTES - 2) + [30, 90]
    assert line.end == START + 120


def test_line_has_gaps_where_nothing_is_known(sessions):
    history = history_of(
        sample(START, 10.0),
        Sample(incarnation="i1", key=ADA, at=START + 60, gpus=None),
        sample(START + 180, 40.0),
    )
    line = history.line(ADA, START + 180)
    assert line.gpu_percent[-4:] == [10.0, None, None, 40.0]
    assert history.line(ADA, START + 180 + 59 * 60).gpu_percent[0] == 40.0
    sessions.runtime(ADA).history = history
    sessions.clock.advance(180 + 59 * 60)
    assert [line.key for line in sessions.gpu_lines({ADA, BOB})] == [ADA]
    sessions.clock.advance(60)
    assert sessions.gpu_lines({ADA, BOB}) == []


def test_line_forgets_what_is_older_than_an_hour_and_ignores_late_samples():
    history = history_of(
        sample(START, 10.0), sample(START + 3601, 20.0), sample(START + 3000, 99.0)
    )
    line = history.line(ADA, START + 3601)
    assert [v for v in line.gpu_percent if v is not None] == [20.0]


def test_line_begins_anew_when_the_clock_was_put_back_by_hours():
    history = history_of(sample(START, 10.0), sample(START - 86400, 20.0))
    assert history.line(ADA, START - 86400).gpu_percent[-1] == 20.0


def test_cards_are_those_of_the_same_incarnation_and_forgotten_in_the_end():
    history = history_of(sample(START, 10.0))
    assert [card.uuid for card in history.cards_of("i1")] == ["a"]
    assert history.cards_of("i2") == []
    assert not history.is_over(START + 3600)
    assert history.is_over(START + 3700)


@pytest.fixture
def sessions(tmp_path):
    journal = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    yield Sessions(journal, ManualClock(START))
    journal.close()


def hold(sessions: Sessions, key: SessionKey, card: str, percent: float | None) -> None:
    row = SessionRow(key=key, phase=Phase.RUNNING, since=1.0, incarnation="i1")
    sessions.journal.save(row)
    now = sessions.clock.now()
    runtime = sessions.runtime(key)
    runtime.history = added(None, sample(now, percent, card=card, key=key))
    usage = Usage(
        at=now, watched=60, sample_age=0, last_active=now, gpu_percent=percent
    )
    runtime.usage = usage


def test_totals_count_cards_that_work_idle_and_are_freed(sessions):
    tally = TotalsLog(sessions)
    sessions.runtime(SessionKey("fay")).waiting = Waiting(place=1, since=START)
    hold(sessions, ADA, "a", 90.0)
    hold(sessions, BOB, "a", 0.0)  # a card that two hold works when one of them does
    hold(sessions, SessionKey("cy"), "b", 0.0)
    hold(sessions, SessionKey("di"), "c", None)  # unknown is never idle
    saved = SessionRow(key=SessionKey("ed"), phase=Phase.SUSPENDED, since=1.0, gpus=4)
    sessions.journal.save(saved)
    now = tally.now()
    assert (now.gpus_known, now.gpus_in_use, now.gpus_idle) == (3, 2, 1)
    assert (now.gpus_freed, now.waiting) == (4, 1)
    assert now.sessions == {"running": 4, "suspended": 1}


def test_gpus_are_counted_by_node_model_and_what_is_done_with_them(sessions):
    tally, at = TotalsLog(sessions), sessions.clock.now()

    def change(key: SessionKey, **values) -> None:
        row = sessions.journal.session(key)
        sessions.journal.save(msgspec.structs.replace(row, node="gpu-1", **values))

    hold(sessions, ADA, "a", 90.0)
    hold(sessions, BOB, "a", 0.0)  # kept on a card on which another one works
    hold(sessions, SessionKey("cy"), "b", 0.0)
    hold(sessions, SessionKey("di"), "b", 0.0)
    hold(sessions, SessionKey("eve"), "c", 0.0)
    hold(sessions, SessionKey("fay"), "d", 0.0)
    change(ADA)
    change(BOB, kept_until=at + 60)
    change(SessionKey("cy"), kept_until=at - 60)  # it is over
    change(SessionKey("di"))
    change(SessionKey("eve"), opted_out_by="root")
    change(SessionKey("fay"), kept_until=at + 60)
    values = {"since": 1.0, "gpus": 3, "gpu_name": "T4"}
    sessions.journal.save(
        SessionRow(key=SessionKey("gil"), phase=Phase.SUSPENDED, **values)
    )
    sessions.seats_per_gpu = 2
    model = sessions.runtime(ADA).cards("i1")[0].name
    assert tally.gpus() == [
        GpuCount("", "T4", "freed", 1.5),
        GpuCount("gpu-1", model, "idle", 1),
        GpuCount("gpu-1", model, "in_use", 1),
        GpuCount("gpu-1", model, "kept", 2),
    ]


def test_totals_are_written_once_a_step_and_survive_a_restart(sessions):
    tally = TotalsLog(sessions)
    saved = SessionRow(key=ADA, phase=Phase.SUSPENDED, since=START, gpus=2)
    sessions.journal.save(saved)
    for _ in range(6):
        tally.note()
        sessions.clock.advance(STEP / 2)
    again = TotalsLog(sessions)
    again.note()
    found = again.since(1)
    assert [point.at - START for point in found.points] == [0, STEP, 2 * STEP, 3 * STEP]
    assert found.points[0].sessions == {"suspended": 1}
    assert found.gpu_seconds_freed == 4 * STEP * 2
    assert found.gpu_seconds_reclaimed == 3 * STEP * 2


def test_session_that_shared_its_gpu_has_freed_its_share_of_it(sessions):
    sessions.seats_per_gpu = 4
    for name in ("ed", "fay"):
        key = SessionKey(name)
        saved = SessionRow(key=key, phase=Phase.SUSPENDED, since=START, gpus=1)
        sessions.journal.save(saved)
    tally = TotalsLog(sessions)
    assert tally.now().gpus_freed == 0
    sessions.clock.advance(STEP)
    assert tally.since(1).gpu_seconds_reclaimed == STEP / 2
    sessions.journal.save(SessionRow(key=ADA, phase=Phase.SUSPENDED, gpus=1))
    assert tally.now().gpus_freed == 1  # three seats of four


def test_totals_of_a_month_are_few_points_and_older_ones_are_pruned(sessions):
    tally = TotalsLog(sessions)
    tally.note()
    sessions.clock.advance(KEPT + STEP)
    tally.note()
    assert len(sessions.journal.read(schema.totals.select())) == 1
    found = tally.since(KEPT // 3600)
    assert found.step * MOST_POINTS >= KEPT > found.step * (MOST_POINTS - 20)
    assert found.step % STEP == 0


def test_store_use_is_summed_up_by_user_with_the_largest_first(sessions):
    for name, key, stored in (("c1", ADA, 5), ("c2", BOB, 9), ("c3", ADA, 1)):
        info = CheckpointInfo(
            id=name,
            key=key,
            incarnation="i",
            generation=1,
            created=1.0,
            logical_bytes=100,
            stored_bytes=stored,
        )
        row = CheckpointRow(
            id=name, key=key, generation=1, keeping=Keeping.CURRENT, info=info
        )
        sessions.journal.keep([row])
    found = TotalsLog(sessions).store_use()
    assert [(use.user, use.checkpoints, use.stored_bytes) for use in found] == [
        ("bob", 1, 9),
        ("ada", 2, 6),
    ]
    assert found[1].logical_bytes == 200

"""Totals of all sessions, as they are now."""

from dataclasses import replace

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.models import (
    GpuSample,
    Phase,
    Sample,
    SessionKey,
    Usage,
)
from jupyterhub_gpu_reclaim.controlplane import metrics
from jupyterhub_gpu_reclaim.controlplane.accounting import GpuCount
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.session import (
    CheckpointRow,
    SessionEvent,
    SessionRow,
)
from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
from tests.support.checkpoints import checkpoint
from tests.support.manual_clock import ManualClock

ADA, BOB = SessionKey("ada"), SessionKey("bob", "train")
START = 1_700_000_000.0


def sample(at: float, card="a", key=ADA) -> Sample:
    cards = [GpuSample(uuid=card)]
    return Sample(incarnation="i1", key=key, at=at, gpus=cards)


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
    runtime.sample = sample(now, card=card, key=key)
    usage = Usage(
        at=now, watched=60, sample_age=0, last_active=now, gpu_percent=percent
    )
    runtime.usage = usage


def test_what_was_seen_of_another_incarnation_is_forgotten(sessions):
    hold(sessions, ADA, "a", 90.0)
    runtime = sessions.runtime(ADA)
    assert [card.uuid for card in runtime.cards] == ["a"]
    sessions.apply(ADA, SessionEvent.FOUND_RUNNING, incarnation="i1")
    assert runtime.cards
    sessions.apply(ADA, SessionEvent.FOUND_RUNNING, incarnation="i2")
    assert (runtime.cards, runtime.usage, runtime.sample) == ([], None, None)


def suspended(sessions, key: SessionKey, since: float, *cards: str) -> None:
    """A session that has left these cards to others."""
    gpus = [GpuSample(uuid=f"GPU-{n}", name=each) for n, each in enumerate(cards)]
    info = checkpoint(f"c-{key.user}", key, gpus=gpus)
    row = SessionRow(key=key, phase=Phase.SUSPENDED, since=since, checkpoint=info.id)
    sessions.journal.save(row, None, [CheckpointRow(info=info)])


def test_gpus_are_counted_by_node_model_and_what_is_done_with_them(sessions):
    at = sessions.clock.now()

    def change(key: SessionKey, **values) -> None:
        row = sessions.journal.session(key)
        sessions.journal.save(msgspec.structs.replace(row, node="gpu-1", **values))

    hold(sessions, ADA, "a", 90.0)
    hold(sessions, BOB, "a", 0.0)  # kept on a card on which another one works
    hold(sessions, SessionKey("cy"), "b", 0.0)
    hold(sessions, SessionKey("di"), "b", 0.0)
    hold(sessions, SessionKey("eve"), "c", 0.0)
    hold(sessions, SessionKey("fay"), "d", 0.0)
    hold(sessions, SessionKey("hal"), "e", None)  # unknown is never idle
    change(ADA)
    change(SessionKey("hal"))
    change(BOB, kept_until=at + 60)
    change(SessionKey("cy"), kept_until=at - 60)  # it is over
    change(SessionKey("di"))
    change(SessionKey("eve"), opted_out_by="root")
    change(SessionKey("fay"), kept_until=at + 60)
    suspended(sessions, SessionKey("gil"), 1.0, *["T4"] * 3)
    sessions.settings = replace(sessions.settings, seats_per_gpu=2)
    model = sessions.runtime(ADA).cards[0].name
    assert metrics.gpus(sessions) == [
        GpuCount("", "T4", "freed", 1.5),
        GpuCount("gpu-1", model, "idle", 1),
        GpuCount("gpu-1", model, "in_use", 2),
        GpuCount("gpu-1", model, "kept", 2),
    ]


def test_store_use_is_of_every_checkpoint(sessions):
    for name, key, stored in (("c1", ADA, 5), ("c2", BOB, 9), ("c3", ADA, 1)):
        info = checkpoint(name, key, logical_bytes=100, stored_bytes=stored)
        sessions.journal.keep([CheckpointRow(info=info)])
    assert metrics.stored_bytes(sessions) == 15


def test_gpu_time_given_back_is_counted_once_by_shares_and_outlives_a_restart(sessions):
    sessions.settings = replace(sessions.settings, seats_per_gpu=4)
    for name in ("ed", "fay"):
        suspended(sessions, SessionKey(name), START, "T4")
    assert metrics.gpu_seconds(sessions) == 0
    sessions.clock.advance(100)
    assert metrics.gpu_seconds(sessions) == 50  # it goes on
    sessions.apply(SessionKey("ed"), SessionEvent.RESTORE)
    sessions.remove(SessionKey("fay"), sessions.audit_line(ADA, "root", "delete"))
    sessions.clock.advance(100)
    assert metrics.gpu_seconds(sessions) == 50
    again = Sessions(sessions.journal, sessions.clock)
    assert metrics.gpu_seconds(again) == 50

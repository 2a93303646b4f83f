"""What the store shows of a session has its row as soon as it is seen."""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import (
    Aside,
    CheckpointInfo,
    Phase,
    SessionKey,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import phase
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.phase import Observed
from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, SessionRow
from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
from tests.support.manual_clock import ManualClock

ADA, BOB = SessionKey("ada"), SessionKey("bob")


@pytest.fixture
def sessions():
    journal = Journal("sqlite://")
    yield Sessions(journal, ManualClock(1000.0))
    journal.close()


def info(number: int, *, aside: bool = False) -> CheckpointInfo:
    return CheckpointInfo(
        id=f"c{number}",
        key=ADA,
        incarnation=f"i{number}",
        generation=number,
        created=1.0,
        logical_bytes=1,
        stored_bytes=1,
        aside=Aside(until=None) if aside else None,
    )


def ids(sessions: Sessions) -> set[str]:
    return {row.id for row in sessions.journal.checkpoints(ADA)}


def test_what_is_seen_has_a_row_whether_or_not_its_session_has_one(sessions):
    sessions.see(ADA, [info(1)])
    assert ids(sessions) == {"c1"}
    assert not sessions.row(ADA).since
    sessions.journal.save(SessionRow(key=ADA, since=1.0))
    sessions.see(ADA, [info(1), info(2, aside=True)])
    assert ids(sessions) == {"c1", "c2"}
    assert sessions.row(ADA).stamp == (0, 0)  # nothing was decided of it


def test_what_was_deleted_since_the_list_is_not_seen_again(sessions):
    sessions.runtime(ADA).deleted = frozenset({"c1"})
    sessions.see(ADA, [info(1)])
    assert ids(sessions) == set()


@pytest.mark.parametrize(("chosen", "found"), [(True, "c5"), (False, None)])
def test_journal_that_was_put_back_takes_the_choice_that_it_has_missed(
    sessions, chosen, found
):
    """It has set c5 aside; since then something newer was, and c5 was brought back."""
    row = SessionRow(key=ADA, since=1.0, phase=Phase.STOPPED, stamp=(0, 5))
    sessions.journal.save(row, checkpoints=[CheckpointRow(info=info(5, aside=True))])
    there = (info(5, aside=not chosen), info(6, aside=True))
    sessions.see(ADA, there)
    current = phase.current(sessions.row(ADA), Observed((), there, None))
    assert (current and current.id) == found


async def test_session_whose_row_cannot_be_written_keeps_no_other_from_being_seen(
    world, monkeypatch, caplog
):
    """The disk is full when it is looked at; it has its turn at a later tick."""
    first, _ = await world.started()
    await world.running(key=BOB)
    await world.reaches(first, "running", BOB)
    for key in (ADA, BOB):
        await world.suspend(first, key)
    full, see = [True], Sessions.see

    def written(self, key, infos):
        if key == ADA and full:
            raise StoreError(Reason.INTERNAL, detail="database or disk is full")
        see(self, key, infos)

    monkeypatch.setattr(Sessions, "see", written)
    second = await world.journal_lost(first)
    await world.reaches(second, "suspended", BOB)
    assert not second._sessions.journal.checkpoints(ADA)
    await asyncio.sleep(5)  # many ticks
    assert caplog.text.count("ada/: not compared") == 1
    full.clear()
    await world.reaches(second, "suspended", ADA)


async def test_all_sessions_whose_rows_cannot_be_written_are_told_in_one_line(
    world, monkeypatch, caplog
):
    controller, _ = await world.started()
    await world.running(key=BOB)
    await world.reaches(controller, "running", BOB)

    def full(*_):
        raise StoreError(Reason.INTERNAL, detail="database or disk is full")

    monkeypatch.setattr(Sessions, "note_ended", full)
    await asyncio.sleep(5)  # many ticks
    told = [line for line in caplog.messages if "not compared" in line]
    assert len(told) == 1
    assert "2 sessions" in told[0]

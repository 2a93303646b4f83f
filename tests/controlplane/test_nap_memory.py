"""Memory that naps moved out, in the report of a month: counted once, or not known."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import text

from jupyterhub_gpu_reclaim.common.models import (
    GpuSample,
    Nap,
    Phase,
    SessionKey,
    Tree,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.report import as_csv, bounds
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.model.phases import SessionEvent
from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
from jupyterhub_gpu_reclaim.controlplane.sessions import reclaimed
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions
from tests.support.manual_clock import ManualClock

HOUR = 3600.0
GB = 10**9
_, NOVEMBER = bounds("2026-10")
ADA = SessionKey("ada")
AWAKE = Tree(incarnation="i1", key=ADA, state=TreeState.RUNNING, init_pid=7)


@pytest.fixture
def clock():
    return ManualClock(NOVEMBER - 3 * HOUR)


@pytest.fixture
def journal(tmp_path):
    journal = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    yield journal
    journal.close()


@pytest.fixture
def sessions(journal, clock):
    row = SessionRow(
        key=ADA, phase=Phase.RUNNING, since=clock.now(), incarnation="i1", node="gpu-1"
    )
    journal.save(row)
    return Sessions(journal, clock)


def asleep(*gb: int, begun: float = 0.0) -> Tree:
    """Its tree while it naps, with so many GB of one card or several."""
    gpus = [
        GpuSample(uuid=str(n), name="H200", memory=m * GB) for n, m in enumerate(gb)
    ]
    nap = Nap(begun=begun, gpus=gpus)
    return msgspec.structs.replace(AWAKE, state=TreeState.NAPPING, nap=nap)


def gb_hours(sessions, month: str = "2026-10") -> float | None:
    return reclaimed.of_month(sessions, month, {}).nap_gb_hours


def test_nap_counts_with_its_memory_until_it_wakes_and_in_both_months(sessions, clock):
    sessions.note_nap(ADA, AWAKE)
    clock.advance(HOUR)
    for _ in range(3):  # each look finds the same
        sessions.note_nap(ADA, asleep(20, 10))
    clock.advance(HOUR)
    assert gb_hours(sessions) == pytest.approx(30)
    clock.advance(3 * HOUR)
    sessions.note_nap(ADA, AWAKE)
    clock.advance(9 * HOUR)
    assert gb_hours(sessions) == pytest.approx(60)
    assert gb_hours(sessions, "2026-11") == pytest.approx(60)


def test_kernel_that_wakes_alone_takes_its_part_back(sessions, clock):
    sessions.note_nap(ADA, asleep(30))
    clock.advance(HOUR)
    part = msgspec.structs.replace(asleep(10), state=TreeState.RUNNING)
    sessions.note_nap(ADA, part)
    clock.advance(HOUR)
    assert gb_hours(sessions) == pytest.approx(40)


def test_restart_neither_ends_nor_doubles_a_nap(sessions, journal, clock):
    sessions.note_nap(ADA, asleep(30))
    clock.advance(HOUR)
    sessions = Sessions(journal, clock)
    sessions.note_nap(ADA, asleep(30))
    clock.advance(HOUR)
    assert gb_hours(sessions) == pytest.approx(60)


def test_end_of_the_session_ends_its_nap(sessions, clock):
    sessions.note_nap(ADA, asleep(30))
    clock.advance(HOUR)
    sessions.apply(ADA, SessionEvent.STOPPED)
    clock.advance(HOUR)
    assert gb_hours(sessions) == pytest.approx(30)


def test_journal_that_does_not_answer_makes_it_due_at_the_next_look(
    sessions, journal, clock
):
    sessions.note_nap(ADA, AWAKE)
    journal.write(text("ALTER TABLE nap_memory RENAME TO elsewhere"))
    sessions.note_nap(ADA, asleep(30))
    journal.write(text("ALTER TABLE elsewhere RENAME TO nap_memory"))
    clock.advance(HOUR)
    sessions.note_nap(ADA, asleep(30))
    clock.advance(HOUR)
    assert gb_hours(sessions) == pytest.approx(30)


def test_shares_are_by_user_node_and_model_beside_suspensions(sessions, clock):
    sessions.note_nap(ADA, asleep(30))
    clock.advance(HOUR)
    found = reclaimed.of_month(sessions, "2026-10", {"ada": ["physics"]})
    for shares, name in (
        (found.users, "ada"),
        (found.groups, "physics"),
        (found.nodes, "gpu-1"),
        (found.gpus, "H200"),
    ):
        (share,) = shares
        assert (share.name, share.gpu_hours, share.suspensions) == (name, 0.0, 0)
        assert share.nap_gb_hours == pytest.approx(30)
    assert "2026-10,user,ada,0.000,0,30.000" in as_csv(found)


def test_month_in_which_nothing_was_counted_has_no_number(sessions, clock):
    """An older release has journalled this month, and no naps."""
    row = SessionRow(key=SessionKey("bob"), phase=Phase.SUSPENDED, since=1.0, gpus=1)
    sessions.journal.save(row)
    before = reclaimed.of_month(sessions, "2026-09", {})
    assert (before.nap_gb_hours, before.naps_since) == (None, None)
    assert [one.nap_gb_hours for one in before.users] == [None]
    assert "2026-09,user,bob,720.000,1,\r\n" in as_csv(before)
    sessions.note_nap(ADA, AWAKE)
    begun = clock.now()
    this = reclaimed.of_month(sessions, "2026-10", {})
    assert (this.nap_gb_hours, this.naps_since) == (None, None)  # just now
    clock.advance(5 * HOUR)
    this, later = (
        reclaimed.of_month(sessions, month, {}) for month in ("2026-10", "2026-11")
    )
    assert (this.nap_gb_hours, this.naps_since) == (0.0, begun)
    assert (later.nap_gb_hours, later.naps_since) == (0.0, None)
    assert reclaimed.of_month(sessions, "2026-09", {}).nap_gb_hours is None

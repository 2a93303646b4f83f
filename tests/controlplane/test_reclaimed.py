"""The report of a month: every suspension in it once, as far as it reaches into it."""

from __future__ import annotations

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import Phase, SessionKey, Tree, TreeState
from jupyterhub_gpu_reclaim.common.report import KEPT, as_csv, bounds, neighbours
from jupyterhub_gpu_reclaim.controlplane.journal import schema
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.model.phases import SessionEvent
from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
from jupyterhub_gpu_reclaim.controlplane.sessions import reclaimed
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions
from tests.controlplane.conftest import KEY
from tests.support.manual_clock import ManualClock

HOUR = 3600.0
OCTOBER, NOVEMBER = bounds("2026-10")
ADA, BOB = SessionKey("ada"), SessionKey("bob", "lab")


@pytest.fixture
def sessions(tmp_path):
    journal = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    yield Sessions(journal, ManualClock(NOVEMBER - 2 * HOUR))
    journal.close()


def suspended(sessions: Sessions, key: SessionKey, **changes: object) -> None:
    row = SessionRow(
        key=key,
        phase=Phase.SUSPENDED,
        since=sessions.clock.now(),
        checkpoint="c1",
        gpus=2,
        gpu_name="H200",
        node="gpu-1",
    )
    sessions.journal.save(msgspec.structs.replace(row, **changes))


def test_suspension_over_the_end_of_a_month_counts_in_both(sessions):
    suspended(sessions, ADA)
    sessions.clock.advance(5 * HOUR)
    sessions.apply(ADA, SessionEvent.RESTORE)
    sessions.clock.advance(9 * HOUR)  # what comes after it is not in it
    for month, hours in (("2026-10", 4.0), ("2026-11", 6.0), ("2026-09", 0.0)):
        found = reclaimed.of_month(sessions, month, {})
        assert found.gpu_hours == pytest.approx(hours), month
    assert found.suspensions == 0


def test_suspension_that_goes_on_counts_up_to_now(sessions):
    sessions.seats_per_gpu = 4
    suspended(sessions, ADA)
    sessions.clock.advance(HOUR)
    found = reclaimed.of_month(sessions, "2026-10", {})
    assert (found.gpu_hours, found.suspensions) == (0.5, 1)
    assert found.end == sessions.clock.now()


def test_shares_are_by_user_group_node_and_model(sessions):
    suspended(sessions, ADA)
    suspended(sessions, BOB, gpus=1, node="", gpu_name="A100")
    suspended(sessions, SessionKey("no-gpu"), gpus=0)
    sessions.clock.advance(HOUR)
    sessions.apply(ADA, SessionEvent.RESTORE)
    groups = {"ada": ["physics", "ai"], "bob": []}
    found = reclaimed.of_month(sessions, "2026-10", groups)

    def told(shares):
        return [(one.name, one.gpu_hours) for one in shares]

    assert told(found.users) == [("ada", 2.0), ("bob", 1.0)]
    assert told(found.groups) == [("ai", 2.0), ("physics", 2.0), ("", 1.0)]
    assert told(found.nodes) == [("gpu-1", 2.0), ("", 1.0)]
    assert told(found.gpus) == [("H200", 2.0), ("A100", 1.0)]
    assert found.gpu_hours == 3.0


def test_rows_of_years_ago_go_with_the_next_one(sessions):
    for _ in range(2):
        suspended(sessions, ADA)
        sessions.clock.advance(HOUR)
        sessions.apply(ADA, SessionEvent.RESTORE)
        sessions.clock.advance(KEPT)
    assert len(sessions.journal.read(schema.reclaimed.select())) == 1


def test_node_is_noted_while_it_runs_and_kept_after(sessions):
    sessions.journal.save(
        SessionRow(key=ADA, phase=Phase.RUNNING, since=1.0, incarnation="i1")
    )
    there = Tree(
        incarnation="i1", key=ADA, state=TreeState.UNKNOWN, init_pid=0, node="gpu-7"
    )
    for tree in (None, msgspec.structs.replace(there, incarnation="other"), there):
        sessions.note_node(ADA, tree)
    assert sessions.view(ADA).facts.node == "gpu-7"
    sessions.note_node(ADA, msgspec.structs.replace(there, node=""))
    assert sessions.view(ADA).facts.node == "gpu-7"


def test_node_of_a_session_that_comes_back_is_not_known_at_first(sessions):
    suspended(sessions, ADA, incarnation="i1")
    assert sessions.view(ADA).facts.node == "gpu-1"
    sessions.clock.advance(HOUR)
    sessions.apply(ADA, SessionEvent.RESTORE, incarnation="i2")
    assert sessions.view(ADA).facts.node == ""
    (row,) = sessions.journal.read(schema.reclaimed.select())
    assert row["node"] == "gpu-1"


async def test_deleted_session_stays_in_the_report(world):
    await world.running()
    controller = await world.controller()
    await world.until(lambda: world.phase(controller) == "running")
    await controller.users.suspend(KEY, "ada")
    await world.until(lambda: world.phase(controller) == "suspended")
    journal = controller._sessions.journal
    journal.save(msgspec.structs.replace(journal.session(KEY), gpus=1))
    await controller.users.delete(KEY, "ada")
    (one,) = journal.read(schema.reclaimed.select())
    assert (one["user"], one["gpus"]) == (KEY.user, 1.0)


@pytest.mark.parametrize("text", ["", "2026", "2026-13", "november", "2026-11-01", "x"])
def test_month_that_is_none_is_a_sentence(text):
    with pytest.raises(BadRequest, match="is no month such as 2026-11"):
        bounds(text)


def test_months_follow_each_other_over_the_year():
    assert neighbours("2026-12") == ("2026-11", "2027-01")
    assert neighbours("2027-01") == ("2026-12", "2027-02")


def test_csv_has_no_formula_in_it(sessions):
    suspended(sessions, SessionKey("=1+1"))
    sessions.clock.advance(HOUR)
    text = as_csv(reclaimed.of_month(sessions, "2026-10", {"=1+1": ["a, b"]}))
    assert "2026-10,user,'=1+1,2.000,1" in text
    assert '2026-10,group,"a, b",2.000,1' in text

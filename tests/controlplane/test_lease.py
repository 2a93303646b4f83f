"""One service at a time works on a journal, and who has lost it gives no order."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import BELIEVED, Phase, Placement, SessionKey
from jupyterhub_gpu_reclaim.common.term import HIGHEST
from jupyterhub_gpu_reclaim.controlplane.journal import schema
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.journal.lease import Lease, LeaseHolder
from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
from tests.controlplane.conftest import DELETED, KEY
from tests.support.manual_clock import ManualClock
from tests.support.postgres import Postgres

#: A program on another machine: nobody here can see whether it lives.
ELSEWHERE = LeaseHolder(host="elsewhere", boot="b", pids=1, pid=7, start=7)
SECONDS = 15.0


@pytest.fixture(scope="module")
def postgres():
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a short socket path
    folder.chmod(0o755)
    server = None
    try:
        server = Postgres(folder / "server")
        yield server
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/journal.sqlite"
    name = "j" + tmp_path.name.replace("-", "_").lower()[-40:]
    return request.getfixturevalue("postgres").database(name)


@pytest.fixture
def opened(url):
    """Makes journals with a lease each, of services on machines of their own."""
    journals = []

    def made(clock=None, place=ELSEWHERE, seconds=SECONDS) -> tuple[Journal, Lease]:
        journal = Journal(url)
        journals.append(journal)
        return journal, Lease(journal, clock or ManualClock(), seconds, place)

    yield made
    for journal in journals:
        journal.close()


def _row(phase: Phase = Phase.RUNNING) -> SessionRow:
    return SessionRow(key=KEY, since=1.0, phase=phase, checkpoint="c")


def test_lease_is_held_by_one_and_the_next_has_a_higher_term(opened):
    (one, first), (_, second) = opened(), opened()
    assert first.take()
    assert first.take()
    assert not second.take()
    one.save(_row())
    assert (first.term, second.term) == (1, 0)
    first.give_back()
    assert second.take()
    assert second.term == 2


def test_lease_that_is_not_renewed_is_taken_after_its_time(opened):
    clock = ManualClock()
    (one, first), (two, second) = opened(), opened(clock, seconds=600.0)
    assert first.take()
    assert not second.take()
    clock.advance(SECONDS - 0.1)
    first.renew()
    assert not second.take()  # it has lived: the time begins anew
    clock.advance(SECONDS - 0.1)
    one.save(_row())
    assert not second.take()  # a write is a sign of life, too
    clock.advance(SECONDS - 0.1)
    assert not second.take()
    clock.advance(0.2)
    assert second.take()
    two.save(_row(Phase.SUSPENDED))


def test_former_holder_writes_nothing_and_learns_why(opened):
    (one, first), (two, second) = opened(), opened()
    first.take()
    one.save(_row())
    first.give_back()
    second.take()
    two.save(_row(Phase.SUSPENDED))
    for write in (
        lambda: one.save(_row(Phase.STOPPED)),
        lambda: one.drop("c"),
        one.check,
        first.renew,
    ):
        with pytest.raises(Unreachable) as caught:
            write()
        assert caught.value.reason.value == "journal_held"
    first.give_back()  # what is not ours is not given back
    two.save(_row(Phase.SUSPENDED))
    assert [row["phase"] for row in two.read(schema.sessions.select())] == ["suspended"]


def test_term_is_raised_above_one_that_was_seen_elsewhere(opened):
    (one, first), (_, second) = opened(), opened()
    assert first.take()
    before = first.stamp
    first.rise(7)
    first.rise(3)
    assert (first.term, first.stamp.number) == (8, 8)
    assert before.is_before(first.stamp)
    one.save(_row())  # what is held is held still
    first.renew()
    first.give_back()
    assert second.take()
    assert second.term == 9


@pytest.mark.parametrize("above", [BELIEVED + 1, HIGHEST, HIGHEST + 1, 9_999_999_999])
def test_term_that_no_service_can_have_had_is_not_raised_above(opened, caplog, above):
    """Else the next holder's would be no number for the journal, or for the agents."""
    (_, first), (_, second) = opened(), opened()
    assert first.take()
    first.rise(above)
    assert first.term == 1
    assert str(above) in caplog.text
    first.rise(BELIEVED)
    first.give_back()
    assert second.take()
    assert second.term == BELIEVED + 2 < HIGHEST


def test_former_holder_cannot_raise_its_term(opened):
    (_, first), (two, second) = opened(), opened()
    first.take()
    first.give_back()
    second.take()
    with pytest.raises(Unreachable) as caught:
        first.rise(7)
    assert caught.value.reason.value == "journal_held"
    assert first.term == 1
    assert two.read(schema.lease.select())[0]["term"] == second.term == 2


class LeaseThatIsSlow(Lease):
    """Between its look and its step another one is quicker."""

    def __init__(self, other: Lease, journal: Journal) -> None:
        super().__init__(journal, ManualClock(), SECONDS, ELSEWHERE)
        self._other = other

    def _is_free(self, seen) -> bool:
        free = super()._is_free(seen)
        assert self._other.take()
        return free


def test_two_who_wait_do_not_both_take_it(opened):
    _, quick = opened()
    journal, _ = opened()
    assert not LeaseThatIsSlow(quick, journal).take()
    quick.renew()
    assert journal.lease is None


def _ends_at_once() -> None:
    os._exit(0)


def test_holder_that_has_ended_on_this_machine_is_followed_at_once(opened):
    child = multiprocessing.get_context("fork").Process(target=_ends_at_once)
    here = LeaseHolder.here()
    assert not here.has_ended()
    child.start()
    gone = msgspec.structs.replace(here, pid=child.pid)
    child.join()
    assert gone.has_ended()
    assert msgspec.structs.replace(here, start=here.start - 1).has_ended()
    for unseen in ({"boot": "another"}, {"pids": 1}, {"pid": 0}):
        assert not msgspec.structs.replace(gone, **unseen).has_ended()
    (_, first), (_, second) = opened(place=gone), opened()
    assert first.take()
    assert second.take()


def test_row_of_a_newer_release_is_waited_for_as_any_other(opened):
    (one, first), (_, second) = opened(), opened()
    first.take()
    one.write(schema.lease.update().values(place="no JSON"))
    assert not second.take()
    assert second.holder == "not known"


# --- the orchestrator under a lease


async def _holding(world, place=ELSEWHERE):
    journal = Journal(world.url)
    lease = Lease(journal, ManualClock(), SECONDS, place)
    assert lease.take()
    # of agents that know no terms: the journal alone keeps who has lost it from acting
    agent, _ = world.clients()
    return await world.controller(journal, agent=agent), journal, lease


async def test_service_that_was_paused_gives_no_order_to_agent_or_hub(world, caplog):
    caplog.set_level("INFO")
    await world.running("tensors")
    first, _, lease = await _holding(world)
    await world.until(lambda: world.phase(first) == "running")
    lease.give_back()  # as if its time had passed
    world.hub.refuses_stop = True
    world.node.hold_at = "dump"
    second, *_ = await _holding(world)
    await second.users.suspend(KEY, "ada")
    # the first one still believes that it runs, and would cancel the capture
    await world.until(lambda: "running: cancel" in caplog.text)
    await world.until(lambda: "journal_held" in caplog.text)
    world.node.hold_at = ""
    await world.until(lambda: world.phase(second) == "releasing")
    await world.until(lambda: "running: take what is captured" in caplog.text)
    await world.until(lambda: world.phase(first) == "releasing")  # as it reads then
    assert world.node.calls == []
    assert world.phase(second) == "releasing"
    world.hub.refuses_stop = False
    await world.until(lambda: world.phase(second) == "suspended")
    assert world.node.calls == []
    assert world.node.lost == world.hub.errors == []


async def test_service_that_has_lost_the_journal_answers_no_spawner(world):
    first, _, lease = await _holding(world)
    lease.give_back()
    await _holding(world)
    new = Placement(key=SessionKey("new"), incarnation="i1")
    for ask in (first.plan_start, first.plan_stop, first.placed, first.forget):
        what = DELETED if ask == first.forget else new
        with pytest.raises(Unreachable) as caught:
            await ask(what)
        assert caught.value.reason.value == "journal_held"

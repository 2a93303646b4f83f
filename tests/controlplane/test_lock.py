"""One service at a time works on a journal, and each has a term of its own."""

import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import BELIEVED, Phase
from jupyterhub_gpu_reclaim.common.term import HIGHEST
from jupyterhub_gpu_reclaim.controlplane import schema
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
from tests.support.postgres import running_postgres
from tests.support.simulated import KEY

#: A service that takes the journal, says so, and waits for its end.
HOLDER = """
import sys, time
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
journal = Journal(sys.argv[1])
print(journal.take(), flush=True)
time.sleep(600)
"""


#: One that is stopped in the middle of writing.
WRITER = """
import sys, time
from jupyterhub_gpu_reclaim.controlplane import schema
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
journal = Journal(sys.argv[1])
assert journal.take()
with journal._transaction() as connection:
    connection.execute(schema.term.update().values(number=9))
    print(True, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def postgres():
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/journal.sqlite"
    name = "j" + tmp_path.name.replace("-", "_").lower()[-40:]
    return request.getfixturevalue("postgres").database(name)


@pytest.fixture
def opened(url):
    """Opens the same journal again and again."""
    journals = []

    def made() -> Journal:
        journals.append(Journal(url))
        return journals[-1]

    yield made
    for journal in journals:
        journal.close()


def _row(phase: Phase = Phase.RUNNING) -> SessionRow:
    return SessionRow(key=KEY, since=1.0, phase=phase, checkpoint="c")


def _until(holds) -> None:
    """PostgreSQL's answer comes before the end of the connection that it is about."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_journal_is_held_by_one_and_the_next_has_a_higher_term(opened):
    first, second = opened(), opened()
    assert first.take()
    assert first.take()
    assert not second.take()
    first.save(_row())
    assert (first.term, second.term) == (1, 0)
    assert (first.is_held(), second.is_held()) == (True, False)
    first.close()
    assert second.take()
    assert second.term == 2
    assert second.session(KEY) == _row()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_lock_of_a_service_that_has_ended_is_free_at_once(url, end):
    command = [sys.executable, "-c", HOLDER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"True\n"
        with closing(Journal(url)) as journal:
            holder.send_signal(signal.SIGSTOP)
            assert not journal.take()  # it may go on at any moment
            holder.send_signal(end)
            holder.send_signal(signal.SIGCONT)
            holder.wait(60)
            assert journal.take()
            assert journal.term == 2


def test_journal_whose_holder_is_stopped_while_it_writes_is_held(url):
    command = [sys.executable, "-c", WRITER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"True\n"
        holder.send_signal(signal.SIGSTOP)
        with closing(Journal(url)) as journal:
            assert not journal.take()
        holder.kill()


def test_lock_outlives_the_file_that_a_backup_is_put_back_into(tmp_path):
    path = tmp_path / "journal.sqlite"
    with (
        closing(Journal(f"sqlite:///{path}")) as first,
        closing(Journal("sqlite:///" + str(tmp_path / "link"))) as other,
    ):
        assert first.take()
        assert other.take()
        shutil.copy(path, tmp_path / "backup")
        (tmp_path / "backup").replace(path)
        with closing(Journal(f"sqlite:///{path}")) as second:
            assert not second.take()


def test_journal_that_has_lost_its_connection_does_nothing_more(opened, caplog):
    """With it PostgreSQL's lock is gone; another connection would have none."""
    first, second = opened(), opened()
    assert first.take()
    first.save(_row())
    first._connection.invalidate()
    for ask in (
        lambda: first.save(_row(Phase.STOPPED)),
        lambda: first.rise(7),
        lambda: first.read(schema.notes.select()),
    ):
        with pytest.raises(StoreError) as caught:
            ask()
        assert "the connection that had its lock was lost" in caught.value.detail
    assert not first.is_held()
    assert "was lost" in caplog.text
    assert [row.phase for row in second.sessions()] == [Phase.RUNNING]


def test_lock_of_a_connection_that_postgresql_has_ended_is_free(opened, url):
    if not url.startswith("postgresql"):
        pytest.skip("of PostgreSQL alone")
    first, second = opened(), opened()
    assert first.take()
    end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
    with second._connection.begin():
        second._connection.exec_driver_sql(end)
    _until(lambda: not first.is_held())
    with pytest.raises(StoreError):
        first.save(_row())
    _until(second.take)
    assert second.term == 2


def test_term_is_raised_above_one_that_was_seen_elsewhere(opened):
    first, second = opened(), opened()
    assert first.take()
    before = first.stamp
    first.rise(7)
    first.rise(3)
    assert (first.term, first.stamp.number) == (8, 8)
    assert before.is_before(first.stamp)
    first.save(_row())
    assert first.is_held()
    first.close()
    assert second.take()
    assert second.term == 9


@pytest.mark.parametrize("above", [BELIEVED + 1, HIGHEST, HIGHEST + 1, 9_999_999_999])
def test_term_that_no_service_can_have_had_is_not_raised_above(opened, caplog, above):
    """Else the next service's would be no number for the journal, or for the agents."""
    first, second = opened(), opened()
    assert first.take()
    first.rise(above)
    assert first.term == 1
    assert str(above) in caplog.text
    first.rise(BELIEVED)
    first.close()
    assert second.take()
    assert second.term == BELIEVED + 2 < HIGHEST


def test_service_whose_locks_hold_nobody_off_notices_and_raises_no_term(opened):
    """A network file system without locks; a pooler in front of PostgreSQL."""
    first, second = opened(), opened()
    assert first.take()
    second.write(schema.term.update().values(number=2))
    assert not first.is_held()
    with pytest.raises(StoreError) as caught:
        first.rise(7)
    assert "another service has taken it" in caught.value.detail
    assert first.term == 1
    assert second.read(schema.term.select()) == [{"number": 2}]


def test_journal_in_memory_is_nobody_elses():
    for _ in range(2):
        with closing(Journal("sqlite://")) as journal:
            assert journal.take()
            assert journal.term == 1


def test_lock_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "journal.sqlite.lock").mkdir()
    with closing(Journal(f"sqlite:///{tmp_path}/journal.sqlite")) as journal:
        with pytest.raises(StoreError) as caught:
            journal.take()
        assert "journal.sqlite.lock" in caught.value.detail


def test_other_databases_are_refused_with_a_sentence():
    with pytest.raises(Refused, match="SQLite or in PostgreSQL, not in mysql"):
        Journal("mysql+pymysql://user@host/db")

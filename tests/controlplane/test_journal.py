"""The journal: what is written comes back."""

import sqlite3
from contextlib import closing

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import (
    AuditLine,
    Failure,
    Phase,
    SessionKey,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import audit, schema
from jupyterhub_gpu_reclaim.controlplane.journal import PRUNED_LINES, Journal
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import (
    CheckpointRow,
    Intent,
    Keeping,
    SessionRow,
)
from tests.support.checkpoints import checkpoint

KEY = SessionKey("ada@example.org", "big one")
INFO = checkpoint(
    "ckpt-1", KEY, generation=3, created=5.0, logical_bytes=7, stored_bytes=6
)
ROW = SessionRow(
    key=KEY,
    phase=Phase.SUSPENDED,
    since=12.5,
    incarnation="i1",
    stamp=(0, 3),
    checkpoint="ckpt-1",
    attempt="ckpt-2",
    intent=Intent.RESUME,
    intent_by="admin",
    failure=Failure(code="io_uring", message="No.", hint="Do.", retryable=True),
    failures=2,
    backoff_until=99.0,
    kept_until=98.0,
    kept_by="ada",
    opted_out_by="grace",
    placed=True,
    node="node1",
    started_at=1.0,
    resumed_at=2.0,
    stop_asked=3.0,
)
CHECKPOINT = CheckpointRow(info=INFO, keeping=Keeping.CURRENT, expires=50.0)
AUDIT = AuditLine(at=6.0, key=KEY, who="ada", what="suspend", code="c", message="m")
WRITTEN = msgspec.structs.replace(AUDIT, id=1)


@pytest.fixture
def journal(tmp_path):
    journal = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    yield journal
    journal.close()


@pytest.fixture(params=["written", "read"])
def saved(request, journal, tmp_path):
    """A journal that has written the rows, or another one that reads them."""
    also = schema.note(NoteKind.RECLAIMED, "", 3.5)
    journal.save(ROW, AUDIT, [CHECKPOINT], also)
    if request.param == "written":
        yield journal
        return
    other = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    yield other
    other.close()


def test_journal_saved_rows_come_back_equal(saved):
    journal = saved
    assert journal.noted(NoteKind.RECLAIMED, "") == 3.5
    assert journal.session(KEY) == ROW
    assert journal.sessions() == [ROW]
    assert journal.checkpoints(KEY) == journal.checkpoints() == [CHECKPOINT]
    assert journal.checkpoint("ckpt-1") == CHECKPOINT
    assert journal.audit(KEY) == journal.audit() == [WRITTEN]
    assert journal.session(SessionKey("nobody")) is None


def test_journal_with_a_code_of_another_release_says_what_it_said(journal, tmp_path):
    """Codes come and go; a row keeps its own code and sentence."""
    old = Failure(code="called_off", message="Called off: ada is back.")
    row = msgspec.structs.replace(ROW, failure=old)
    journal.save(row)
    other = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    assert other.session(KEY) == row
    other.close()
    assert Reason.of(old.code) is Reason.INTERNAL
    assert codec.error_of(old).message == old.message


def test_journal_same_key_is_replaced_and_what_is_dropped_is_gone(journal):
    journal.save(ROW, None, [CHECKPOINT])
    journal.save(SessionRow(key=KEY, phase=Phase.RUNNING, since=1.0))
    assert [row.phase for row in journal.sessions()] == [Phase.RUNNING]
    journal.drop("ckpt-1")
    journal.drop("ckpt-1")
    assert journal.checkpoints() == []


def test_journal_forget_keeps_checkpoints_until_they_are_deleted(journal):
    journal.save(ROW, None, [CHECKPOINT])
    to_delete = CHECKPOINT.kept(Keeping.TO_DELETE, 0.0)
    journal.forget(KEY, AUDIT, [to_delete])
    assert journal.session(KEY) is None
    assert journal.checkpoints() == [to_delete]


def test_journal_is_durable_by_its_settings(journal, tmp_path):
    journal.save(ROW)
    again = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    assert again.session(KEY) == ROW
    again.close()
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_journal_failed_write_changes_nothing(journal):
    journal.save(ROW, AUDIT, [CHECKPOINT])
    bad = CheckpointRow(info=msgspec.structs.replace(INFO, id=None))
    with pytest.raises(StoreError):
        journal.save(SessionRow(key=KEY, since=1.0), AUDIT, [bad])
    assert journal.session(KEY) == ROW
    assert journal.checkpoints() == [CHECKPOINT]
    assert journal.audit() == [WRITTEN]


@pytest.mark.parametrize("version", [0, 2, 17])
def test_journal_of_another_version_is_refused_and_left_as_it_is(tmp_path, version):
    file = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE schema_version (version INTEGER PRIMARY KEY)")
        database.execute("INSERT INTO schema_version VALUES (?)", (version,))
        database.commit()
    with pytest.raises(Refused, match=f"has version {version}; .* version 1") as caught:
        Journal(f"sqlite:///{file}")
    assert caught.value.reason is Reason.OTHER_VERSION
    with closing(sqlite3.connect(file)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type='table'")
        assert tables.fetchall() == [("schema_version",)]


def test_journal_that_cannot_be_opened_is_our_error(tmp_path):
    with pytest.raises(StoreError) as caught:
        Journal(f"sqlite:///{tmp_path}/missing/journal.sqlite")
    assert "missing" not in caught.value.message


@pytest.mark.parametrize("kind", ["session", "checkpoint"])
def test_row_that_cannot_be_read_is_a_fault_of_the_journal(tmp_path, kind):
    url = f"sqlite:///{tmp_path / 'journal'}"
    Journal(url).close()
    with closing(sqlite3.connect(tmp_path / "journal")) as database, database:
        database.execute("INSERT INTO notes VALUES (?, 'c1', '{')", (kind,))
    journal = Journal(url)
    with pytest.raises(StoreError, match=r"journal: .*Not understood"):
        journal.sessions()
    journal.close()


def test_row_that_could_not_be_read_is_not_written(tmp_path):
    """A service of later would not start with it. Bounds are checked as it is read."""
    url = f"sqlite:///{tmp_path / 'journal'}"
    journal = Journal(url)
    journal.save(ROW, AUDIT, [CHECKPOINT])
    with pytest.raises(StoreError, match=r"aside.until"):
        journal.save(ROW, AUDIT, [CHECKPOINT.set_aside(1e12)])
    journal.close()
    journal = Journal(url)
    assert (journal.sessions(), journal.checkpoints()) == ([ROW], [CHECKPOINT])
    assert len(journal.audit()) == 1
    journal.close()


def test_prune_audit_deletes_old_lines_in_small_portions(journal):
    lines = [
        msgspec.structs.replace(AUDIT, at=float(at)) for at in range(PRUNED_LINES + 5)
    ]
    journal.write(*[each for line in lines for each in schema.insert_audit(line)])
    assert journal.prune_audit(PRUNED_LINES + 2.0)
    assert not journal.prune_audit(PRUNED_LINES + 2.0)
    assert [line.at - PRUNED_LINES for line in journal.audit()] == [4.0, 3.0, 2.0]
    assert not journal.prune_audit(0.0)
    assert len(journal.audit()) == 3


def test_journal_sessions_and_checkpoints_are_in_order_after_any_change(journal):
    users = ["eve", "ada", "bob"]
    for user in users:
        key = SessionKey(user)
        rows = [
            CheckpointRow(
                info=msgspec.structs.replace(
                    INFO, id=f"{user}-{n}", key=key, generation=n
                )
            )
            for n in (2, 1)
        ]
        journal.save(SessionRow(key=key, since=1.0), None, rows)
    journal.forget(SessionKey("bob"), AUDIT, [])
    journal.drop("ada-2")
    journal.save(SessionRow(key=SessionKey("bea"), since=1.0))
    assert [row.key.user for row in journal.sessions()] == ["ada", "bea", "eve"]
    assert [row.id for row in journal.checkpoints(SessionKey("eve"))] == [
        "eve-1",
        "eve-2",
    ]
    assert [row.id for row in journal.checkpoints()] == [
        "ada-1",
        "bob-1",
        "eve-1",
        "bob-2",
        "eve-2",
    ]


def test_audit_is_read_forward_by_number_and_backward_by_user(journal):
    for at in (6.0, 7.0, 8.0):
        journal.save(ROW, msgspec.structs.replace(AUDIT, at=at))
    first, *later = audit.after(journal, 0)
    assert first.at == 6.0
    assert audit.after(journal, first.id) == later
    assert [e.at for e in journal.audit(KEY.user, 1, later[-1].id)] == [7.0]
    assert journal.audit("nobody", 5) == []

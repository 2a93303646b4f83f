"""The journal: what is written comes back, also from an older release's file."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    Failure,
    Phase,
    SessionKey,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.journal import (
    audit_log,
    notes,
    schema,
    store_word,
)
from jupyterhub_gpu_reclaim.controlplane.journal.journal import PRUNED_LINES, Journal
from jupyterhub_gpu_reclaim.controlplane.journal.notes import NoteKind
from jupyterhub_gpu_reclaim.controlplane.model.rows import (
    AuditRow,
    CheckpointRow,
    Intent,
    Keeping,
    MeantStore,
    SessionRow,
)

SAMPLES = Path(__file__).parent / "samples"
KEY = SessionKey("ada@example.org", "big one")
INFO = CheckpointInfo(
    id="ckpt-1",
    key=KEY,
    incarnation="i1",
    generation=3,
    created=5.0,
    logical_bytes=7,
    stored_bytes=6,
)
ROW = SessionRow(
    key=KEY,
    phase=Phase.SUSPENDED,
    since=12.5,
    incarnation="i1",
    generation=3,
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
CHECKPOINT = CheckpointRow(
    id="ckpt-1",
    key=KEY,
    generation=3,
    keeping=Keeping.CURRENT,
    info=INFO,
    changed=4.0,
    expires=50.0,
)
AUDIT = AuditRow(at=6.0, key=KEY, who="ada", what="suspend", code="c", message="m")


@pytest.fixture
def journal(tmp_path):
    journal = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    yield journal
    journal.close()


@pytest.fixture(params=["written", "read"])
def saved(request, journal, tmp_path):
    """A journal that has written the rows, or another one that reads them."""
    journal.save(ROW, AUDIT, [CHECKPOINT], {"n": 1.5})
    journal.save(ROW, amounts={"n": 2.0})
    if request.param == "written":
        yield journal
        return
    other = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    yield other
    other.close()


def test_journal_saved_rows_come_back_equal(saved):
    journal = saved
    assert journal.amount("n") == 3.5
    assert journal.session(KEY) == ROW
    assert journal.sessions() == [ROW]
    assert journal.checkpoints(KEY) == journal.checkpoints() == [CHECKPOINT]
    assert journal.checkpoint("ckpt-1") == CHECKPOINT
    assert journal.audit(KEY) == journal.audit() == [AUDIT]
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


def test_journal_same_key_is_replaced_and_due_ones_are_found(journal):
    journal.save(ROW, None, [CHECKPOINT])
    journal.save(SessionRow(key=KEY, phase=Phase.RUNNING, since=1.0))
    assert [row.phase for row in journal.sessions()] == [Phase.RUNNING]
    assert journal.due(49.9) == []
    assert journal.due(50.0) == [CHECKPOINT]
    journal.drop("ckpt-1")
    journal.drop("ckpt-1")
    assert journal.checkpoints() == []


def test_journal_forget_keeps_checkpoints_until_they_are_deleted(journal):
    journal.save(ROW, None, [CHECKPOINT])
    to_delete = CheckpointRow(
        id="ckpt-1", key=KEY, generation=3, keeping=Keeping.TO_DELETE, expires=0.0
    )
    journal.forget(KEY, AUDIT, [to_delete])
    assert journal.session(KEY) is None
    assert journal.due(1.0) == [to_delete]


def test_journal_is_durable_by_its_settings(journal, tmp_path):
    journal.save(ROW)
    again = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    assert again.session(KEY) == ROW
    again.close()
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_journal_failed_write_changes_nothing(journal):
    journal.save(ROW, AUDIT, [CHECKPOINT])
    bad = CheckpointRow(id=None, key=KEY, generation=1, keeping=Keeping.ASIDE)
    with pytest.raises(StoreError):
        journal.save(SessionRow(key=KEY, since=1.0), AUDIT, [bad])
    assert journal.session(KEY) == ROW
    assert journal.checkpoints() == [CHECKPOINT]
    assert journal.audit() == [AUDIT]


def test_marks_of_an_older_release_are_notes(tmp_path):
    """One of a former release that nothing here reads is left out."""
    names = {
        "trail:events": NoteKind.READER,
        "renew login:/ada/": NoteKind.LOGIN_RENEWAL,
        "culled:cull-idle": NoteKind.CULLER,
        "order to delete:0001": NoteKind.DELETION,
        "deletion:ckpt-1": NoteKind.EXPIRY,
        "naps-counted": NoteKind.NAPS,
        "tab keys of:/ada/": NoteKind.TAB_KEY,
        "tab keys void until:/ada/": NoteKind.NO_TAB_KEYS,
    }
    assert {*names.values()} == {*NoteKind}
    with closing(sqlite3.connect(tmp_path / "old.sqlite")) as database:
        database.executescript((SAMPLES / "journal-v14.sql").read_text())
        rows = [*((name, -7.5) for name in names), ("of long ago", 1.0)]
        database.executemany("INSERT INTO marks VALUES (?, ?)", rows)
        database.commit()
    journal = Journal(f"sqlite:///{tmp_path}/old.sqlite")
    for name, kind in names.items():
        subject = name.partition(":")[2]
        assert notes.read(journal, kind, subject) == -7.5
    noted = [each["subject"] for each in journal.read(schema.notes.select())]
    assert len(noted) == len(names) + 1  # the sample has one of its own
    journal.close()


@pytest.mark.parametrize("version", [*range(1, 13), 14])
def test_journal_of_older_release_is_read(version, tmp_path):
    shutil.copy(SAMPLES / f"journal-v{version}.sql", tmp_path / "dump.sql")
    with closing(sqlite3.connect(tmp_path / "old.sqlite")) as database:
        database.executescript((tmp_path / "dump.sql").read_text())
    journal = Journal(f"sqlite:///{tmp_path}/old.sqlite")
    since = [
        {},
        {"gpus": 2},
        {"gpu_name": "NVIDIA A100", "waiting_since": 7.5},
        {},
        {"account": "7.20260101T000000000000"},
        {"bring_back": "ckpt-0", "dismissed": "ckpt-9"},
        {},
        {},
        {"own_idle_time": 1800.0},
        {},
        {},
        {"session": "s1", "account": "7 2026-01-01"},
    ]
    added = {name: x for one in since[:version] for name, x in one.items()}
    assert journal.session(KEY) == msgspec.structs.replace(ROW, **added)
    naps = journal.session(SessionKey("bob"))
    told = (naps.phase, naps.intent) if naps is not None else ()
    assert told == ((Phase.NAPPING, Intent.WAKE) if version >= 7 else ())
    assert journal.amount("gpu_seconds_reclaimed") == 42.5 * (version >= 3)
    assert journal.checkpoints(KEY) == [CHECKPOINT]
    assert journal.audit() == [AUDIT]
    points = journal.read(schema.totals.select())
    assert [point["gpus_freed"] for point in points] == [3] * (version >= 2)
    keeps = journal.read(schema.keeps.select())
    assert [one["until"] for one in keeps] == [20.0] * (version >= 4)
    read = notes.read(journal, NoteKind.READER, "notices")
    assert read == (1.0 if version >= 4 else None)
    (lease,) = journal.read(schema.lease.select())
    assert lease["term"] == 3 * (version >= 5)
    orders = journal.read(schema.deletions.select())
    assert [one["spared"] for one in orders] == ['["i8"]'] * (version >= 5)
    # the highest that is known under that name; a mark says 6, for all of them
    stamps = [(one["term"], one["generation"]) for one in orders]
    assert stamps == [(0, 4 * (version >= 12))] * (version >= 5)
    suspensions = journal.read(schema.reclaimed.select())
    assert [one["gpus"] for one in suspensions] == [0.5] * (version >= 8)
    naps = journal.read(schema.nap_memory.select())
    assert [one["bytes"] for one in naps] == [8e9] * (version >= 10)
    meant = MeantStore("5" * 32, 1, begun=True) if version >= 11 else None
    assert store_word.meant(journal) == meant
    journal.close()


def test_accounts_that_had_a_table_of_their_own_are_in_the_sessions_rows(tmp_path):
    with closing(sqlite3.connect(tmp_path / "old.sqlite")) as database:
        database.executescript((SAMPLES / "journal-v12-owners.sql").read_text())
    journal = Journal(f"sqlite:///{tmp_path}/old.sqlite")
    rows = {row.key.user: (row.account, row.claimed) for row in journal.sessions()}
    assert rows == {
        "ada": ("7.20260101T000000000000", False),
        "bob": ("*", False),
        "carl": ("7.20260101T000000000000", True),  # its user was deleted
        "dora": ("8.20260202T000000000000", True),  # another one had tried
        "eve": ("", False),
    }
    found = journal.read(text("SELECT name FROM sqlite_master WHERE name = 'owners'"))
    assert not found
    journal.close()


def test_journal_of_newer_release_is_refused_with_a_sentence(journal, tmp_path):
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as database:
        database.execute("INSERT INTO schema_version VALUES (99)")
        database.commit()
    with pytest.raises(Refused, match="install the newer release"):
        Journal(f"sqlite:///{tmp_path}/journal.sqlite")


def test_journal_that_cannot_be_opened_is_our_error(tmp_path):
    with pytest.raises(StoreError) as caught:
        Journal(f"sqlite:///{tmp_path}/missing/journal.sqlite")
    assert "missing" not in caught.value.message


def test_prune_audit_deletes_old_lines_in_small_portions(journal):
    lines = [
        msgspec.structs.replace(AUDIT, at=float(at)) for at in range(PRUNED_LINES + 5)
    ]
    journal.write(*[schema.insert_audit(line) for line in lines])
    assert journal.prune_audit(PRUNED_LINES + 2.0)
    assert not journal.prune_audit(PRUNED_LINES + 2.0)
    assert [line.at - PRUNED_LINES for line in journal.audit()] == [4.0, 3.0, 2.0]
    assert not journal.prune_audit(0.0)
    assert len(journal.audit()) == 3


def test_reader_of_the_audit_misses_nothing_when_all_of_it_was_old(journal):
    reader = audit_log.AuditReader(journal, "test")
    for _ in range(3):
        journal.save(ROW, AUDIT)
    reader.done(reader.next()[-1].id)
    journal.prune_audit(AUDIT.at + 1)
    assert journal.audit() == [AUDIT]
    journal.save(ROW, AUDIT)
    assert len(reader.next()) == 1


def test_journal_sessions_and_checkpoints_are_in_order_after_any_change(journal):
    users = ["eve", "ada", "bob"]
    for user in users:
        key = SessionKey(user)
        rows = [
            CheckpointRow(
                id=f"{user}-{n}", key=key, generation=n, keeping=Keeping.ASIDE
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


def test_trail_begins_with_what_comes_and_goes_on_where_it_was(journal):
    journal.save(ROW, AUDIT)
    reader = audit_log.AuditReader(journal, "test")
    assert reader.next() == []
    for at in (7.0, 8.0):
        journal.save(ROW, msgspec.structs.replace(AUDIT, at=at))
    seen = reader.next()
    assert [each.line.at for each in seen] == [7.0, 8.0]
    reader.done(seen[0].id)
    again = audit_log.AuditReader(journal, "test")
    assert again.next() == reader.next() == seen[1:]
    assert [e.line.at for e in audit_log.of_user(journal, KEY.user, seen[1].id, 1)] == [
        7.0
    ]
    assert audit_log.of_user(journal, "nobody", 0, 5) == []

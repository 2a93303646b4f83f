"""The journal's tables.

A database says which version of them it has. One of another version is refused: nothing
in it is read or changed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import (
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    inspect,
)

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import AuditLine, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason


class NoteKind(StrEnum):
    """What is noted; in parentheses, the subject."""

    SESSION = "session"  #: SessionRow (path)
    CHECKPOINT = "checkpoint"  #: CheckpointRow, a cache of the store's (its id)
    DELETED = "deleted"  #: DeletionOrder, until nothing is left anywhere (path)
    DRAIN = "drain"  #: Drain of a node that is to be free of sessions (its name)
    RECLAIMED = "reclaimed"  #: seconds of GPUs that sessions have left ("")
    # Moments and numbers:
    LOGIN_RENEWAL = "login renewal"  #: until when such an order holds (path)
    CULLER = "culler"  #: when it last ended a session that was not saved (its name)
    FILES_BACK = "files back"  #: when its user said so, for one return (checkpoint)
    JOB = "job"  #: when it is due, for which its session is resumed (path)
    DELETION = "deletion"  #: when an order to delete was taken (the order's name)
    EXPIRY = "expiry"  #: when a deletion was announced (checkpoint)
    RENAMED = "renamed"  #: when its user was told of a former name (checkpoint, or id)


metadata = MetaData()

#: Of these tables.
VERSION = 1

#: Number of the advisory lock in PostgreSQL under which the tables are made.
_CREATING = 0x67_70_75_72

schema = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    Column("user", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("message", Text, nullable=False),
    Index("audit_by_session", "user", "server", "id"),
    Index("audit_by_user", "user", "id"),
)

#: What is known of a subject, of one kind each: that may be a session that has gone, a
#: program, or the journal itself.
notes = Table(
    "notes",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("value", Text, nullable=False),  # JSON
)

#: How many services have worked on this journal, one after the other: one row; each
#: has its number as its term (``common/term.py``).
term = Table("term", metadata, Column("number", Integer, nullable=False))


def create(connection: Connection) -> None:
    """Make what a new database lacks, inside the caller's transaction.

    Raises:
        Refused: it has another version.
    """
    # A service that was stopped while it wrote would keep us from writing, not reading.
    if not inspect(connection).has_table(schema.name):
        if connection.dialect.name == "sqlite":
            # Its driver begins a transaction before rows change, not before tables do.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATING})")
        schema.create(connection, checkfirst=True)
    found = connection.execute(schema.select()).scalars().all()
    if not found:
        metadata.create_all(connection)
        connection.execute(schema.insert().values(version=VERSION))
        connection.execute(term.insert().values(number=0))
    elif found != [VERSION]:
        version = max(found)
        what = "The journal"
        raise Refused(Reason.OTHER_VERSION, what=what, version=version, known=VERSION)


#: Made once: composing a statement takes longer than running it.
_TOLD, _NOTED = audit.insert(), notes.insert()
_FORGOTTEN = notes.delete().where(
    notes.c.kind == bindparam("its_kind"), notes.c.subject == bindparam("its_subject")
)


def note(kind: NoteKind, subject: str, value: Any) -> list[Any]:
    """Note a value as JSON that can be read again, or no service would start with it.

    Raises:
        StoreError: it is out of its bounds.
    """
    text = codec.encode(value).decode()
    try:
        codec.decode(text, type(value))
    except BadRequest as error:
        raise StoreError(Reason.INTERNAL, detail=f"journal: {error}") from None
    row = {"kind": kind.value, "subject": subject, "value": text}
    return [*forget_notes(kind, subject), (_NOTED, row)]


def forget_notes(kind: NoteKind, *subjects: str) -> list[Any]:
    of = {"its_kind": kind.value}
    return [(_FORGOTTEN, {**of, "its_subject": each}) for each in subjects]


def audit_row(row: dict[Any, Any]) -> AuditLine:
    key = SessionKey(row.pop("user"), row.pop("server"))
    return AuditLine(key=key, **row)


def insert_audit(row: AuditLine | None) -> list[Any]:
    if row is None:
        return []
    values = msgspec.structs.asdict(row)
    del values["id"], values["sentence"]
    key = values.pop("key")
    return [(_TOLD, {**values, "user": key.user, "server": key.server})]

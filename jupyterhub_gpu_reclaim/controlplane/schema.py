"""The journal's tables.

A database says which version of them it has. One of another version is refused: nothing
in it is read or changed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

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
    and_,
    bindparam,
    inspect,
)

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import AuditLine, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, SessionRow


class NoteKind(StrEnum):
    """What is noted; in parentheses, the subject."""

    READER = "reader"  #: number of the last line that a reader of the audit has (name)
    LOGIN_RENEWAL = "login renewal"  #: until when such an order holds (path)
    CULLER = "culler"  #: when it last ended a session that was not saved (its name)
    FILES_BACK = "files back"  #: when its user said so, for one return (checkpoint)
    JOB = "job"  #: when it is due, for which its session is resumed (path)
    DELETION = "deletion"  #: when an order to delete was taken (the order's name)
    EXPIRY = "expiry"  #: when a deletion was announced (checkpoint)
    RENAMED = "renamed"  #: when its user was told of a former name (checkpoint, or id)
    TAB_KEY = "tab key"  #: time of the one that counts; negative: later ones (path)
    NO_TAB_KEYS = "no tab keys"  #: time up to which they are revoked (path)


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

sessions = Table(
    "sessions",
    metadata,
    Column("user", Text, primary_key=True),
    Column("server", Text, primary_key=True),
    Column("row", Text, nullable=False),  # JSON of SessionRow
)

#: A cache: what was last seen of checkpoints, with words that the store is to be told.
checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", Text, primary_key=True),
    Column("row", Text, nullable=False),  # JSON of CheckpointRow
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

amounts = Table(
    "amounts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Float, nullable=False),
)

#: A moment or a number of each subject, of one kind each. What is noted may be of a
#: session that has gone, of a program, or of the journal itself.
notes = Table(
    "notes",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("value", Float, nullable=False),
)

#: How many services have worked on this journal, one after the other: one row; each
#: has its number as its term (``common/term.py``).
term = Table("term", metadata, Column("number", Integer, nullable=False))

#: Deleted servers, until nothing of them is left anywhere.
deletions = Table(
    "deletions",
    metadata,
    Column("user", Text, primary_key=True),
    Column("server", Text, primary_key=True),
    Column("term", Integer, nullable=False),  # of its stamp, which may be raised
    Column("ordered", Text, nullable=False),  # JSON of DeletionOrder
)

#: Nodes that are to be free of sessions; see ``common/drain.py``.
drains = Table(
    "drains",
    metadata,
    Column("node", Text, primary_key=True),
    Column("drain", Text, nullable=False),  # JSON
)


def create(connection: Connection) -> None:
    """Make what a new database lacks, inside the caller's transaction.

    Raises:
        Refused: it has another version.
    """
    # A service that was stopped while it wrote would keep us from writing, not reading.
    if not inspect(connection).has_table(schema.name):
        _lock(connection)
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


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        # Its driver begins a transaction only before rows change, not before tables do.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATING})")


def of_session(table: Any, key: SessionKey) -> Any:
    return and_(table.c.user == key.user, table.c.server == key.server)


#: Insert statements, made once: composing a statement takes longer than running it.
_INSERT = {each: each.insert() for each in (sessions, checkpoints, audit, amounts)}
_NO_SESSION = sessions.delete().where(
    sessions.c.user == bindparam("its_user"),
    sessions.c.server == bindparam("its_server"),
)
_NO_CHECKPOINT = checkpoints.delete().where(checkpoints.c.id == bindparam("its_id"))
_NO_AMOUNT = amounts.delete().where(amounts.c.name == bindparam("its_name"))


def _text(row: SessionRow | CheckpointRow) -> str:
    """The row as JSON that can be read again, or no service would start with it.

    Raises:
        StoreError: a value in it is out of its bounds.
    """
    text = codec.encode(row).decode()
    try:
        codec.decode(text, type(row))
    except BadRequest as error:
        raise StoreError(Reason.INTERNAL, detail=f"journal: {error}") from None
    return text


def replace_session(row: SessionRow) -> list[Any]:
    of = {"user": row.key.user, "server": row.key.server}
    return [
        (_NO_SESSION, {"its_user": row.key.user, "its_server": row.key.server}),
        (_INSERT[sessions], {**of, "row": _text(row)}),
    ]


def replace_checkpoint(row: CheckpointRow) -> list[Any]:
    return [
        (_NO_CHECKPOINT, {"its_id": row.id}),
        (_INSERT[checkpoints], {"id": row.id, "row": _text(row)}),
    ]


def replace_amounts(counted: Mapping[str, float]) -> list[Any]:
    statements: list[Any] = []
    for name, value in counted.items():
        statements.append((_NO_AMOUNT, {"its_name": name}))
        statements.append((_INSERT[amounts], {"name": name, "value": value}))
    return statements


def note(kind: NoteKind, subject: str, value: float) -> list[Any]:
    row = {"kind": kind.value, "subject": subject, "value": value}
    return [*forget_notes(kind, subject), notes.insert().values(**row)]


def forget_notes(kind: NoteKind, *subjects: str) -> list[Any]:
    mine = notes.c.kind == kind.value
    return [notes.delete().where(mine, notes.c.subject == each) for each in subjects]


def audit_row(row: Mapping[Any, Any]) -> AuditLine:
    return AuditLine(
        at=row["at"],
        key=SessionKey(row["user"], row["server"]),
        who=row["who"],
        what=row["what"],
        code=row["code"],
        message=row["message"],
    )


def insert_audit(row: AuditLine) -> Any:
    return _INSERT[audit], audit_values(row)


def audit_values(row: AuditLine) -> dict[str, Any]:
    values = msgspec.structs.asdict(row)
    key = values.pop("key")
    return {**values, "user": key.user, "server": key.server}

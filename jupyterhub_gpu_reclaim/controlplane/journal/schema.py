"""The journal's tables and migrations, in order.

A released migration is never changed; a new one is added at the end and keeps what is
there and needed, so that a frozen sample of each version
(``tests/controlplane/samples``) can be opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import (
    DDL,
    Boolean,
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
    false,
    func,
    inspect,
    select,
)
from sqlalchemy.schema import CreateColumn

from jupyterhub_gpu_reclaim.common import codec, decoders
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Failure, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model.rows import (
    AuditRow,
    CheckpointRow,
    SessionRow,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


metadata = MetaData()

#: Number of the advisory lock of a migration in PostgreSQL.
_MIGRATING = 0x67_70_75_72

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
    Column("phase", Text, nullable=False),
    Column("since", Float, nullable=False),
    Column("incarnation", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("checkpoint", Text, nullable=False),
    Column("attempt", Text, nullable=False),
    Column("intent", Text, nullable=False),
    Column("intent_by", Text, nullable=False),
    Column("failure", Text),  # JSON of models.Failure
    Column("failures", Integer, nullable=False),
    Column("backoff_until", Float),
    Column("kept_until", Float),
    Column("kept_by", Text, nullable=False),
    Column("opted_out_by", Text, nullable=False),
    Column("placed", Boolean, nullable=False),
    Column("node", Text, nullable=False),
    Column("started_at", Float),
    Column("resumed_at", Float),
    Column("stop_asked", Float),
    Column("gpus", Integer, nullable=False, server_default="0"),
    Column("gpu_name", Text, nullable=False, server_default=""),
    Column("waiting_since", Float),
    Column("bring_back", Text, nullable=False, server_default=""),
    Column("dismissed", Text, nullable=False, server_default=""),
    Column("own_idle_time", Float),
    Column("session", Text, nullable=False, server_default=""),
    Column("account", Text, nullable=False, server_default=""),
    Column("term", Integer, nullable=False, server_default="0"),
    Column("claimed", Boolean, nullable=False, server_default=false()),
    Column("save_name", Text, nullable=False, server_default=""),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", Text, primary_key=True),
    Column("user", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("keeping", Text, nullable=False),
    Column("info", Text),  # JSON of models.CheckpointInfo
    Column("changed", Float, nullable=False),
    Column("expires", Float),
    Column("name", Text, nullable=False, server_default=""),
    Index("checkpoints_by_session", "user", "server"),
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
)

totals = Table(
    "totals",
    metadata,
    Column("at", Integer, primary_key=True, autoincrement=False),
    Column("gpus_known", Integer, nullable=False),
    Column("gpus_in_use", Integer, nullable=False),
    Column("gpus_idle", Integer, nullable=False),
    Column("gpus_freed", Integer, nullable=False),
    Column("waiting", Integer, nullable=False),
    Column("sessions", Text, nullable=False),  # JSON: phase -> number
)

amounts = Table(
    "amounts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Float, nullable=False),
)

#: Time that users have used of the keep quota. A line is needed for a day after its
#: end.
keeps = Table(
    "keeps",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("user", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("start", Float, nullable=False),
    Column("until", Float, nullable=False),
    Index("keeps_by_user", "user", "until"),
)

#: Moments and numbers that are noted of a subject; see ``journal/notes.py``.
notes = Table(
    "notes",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("value", Float, nullable=False),
)

#: The lease: which service may work on this journal; one row. ``beat`` grows with each
#: renewal, ``term`` with each holder, so that no clock of two machines is ever
#: compared.
lease = Table(
    "lease",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("holder", Text, nullable=False),  # empty: given back
    Column("term", Integer, nullable=False),
    Column("beat", Integer, nullable=False),
    Column("seconds", Float, nullable=False),  # of stillness until it has lapsed
    Column("place", Text, nullable=False),  # JSON of lease.LeaseHolder
)

#: Deleted servers, until nothing of them is left anywhere.
deletions = Table(
    "deletions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("user", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("incarnations", Text, nullable=False),  # JSON: and sessions, to be ended
    Column("spared", Text, nullable=False),  # JSON: those that were started since
    Column("term", Integer, nullable=False, server_default="0"),
    Column("generation", Integer, nullable=False, server_default="0"),
    Column("accounts", Text, nullable=False, server_default="[]"),  # JSON
    Index("deletions_by_session", "user", "server"),
)

#: GPU time that a suspension has left to others: one row for each that has ended.
reclaimed = Table(
    "reclaimed",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("user", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("gpu_name", Text, nullable=False),
    Column("gpus", Float, nullable=False),  # its share, where several share one
    Column("begun", Float, nullable=False),
    Column("ended", Float, nullable=False),
    Index("reclaimed_by_end", "ended"),
)

#: GPU memory that a session's naps have moved out: a row for as long as it stays so.
nap_memory = Table(
    "nap_memory",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("user", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("gpu_name", Text, nullable=False),
    Column("bytes", Float, nullable=False),
    Column("begun", Float, nullable=False),
    Column("ended", Float),  # null: it naps
    Index("nap_memory_by_end", "ended"),
)

#: The store that is meant: one row, or none where that is not known yet.
store = Table(
    "store",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("store", Text, nullable=False),  # its id
    Column("word", Integer, nullable=False),  # number of the word that says so
    Column("begun", Boolean, nullable=False),  # an agent has seen it
)

#: Nodes that are to be free of sessions; see ``common/drain.py``.
drains = Table(
    "drains",
    metadata,
    Column("node", Text, primary_key=True),
    Column("by", Text, nullable=False),
    Column("since", Float, nullable=False),
    Column("until", Float),
    Column("why", Text, nullable=False),
    Column("comes_back", Boolean, nullable=False),
    Column("over", Boolean, nullable=False),
)

audit_by_user = Index("audit_by_user", audit.c.user, audit.c.id)


def _first(connection: Connection) -> None:
    """Version 1: everything above."""
    metadata.create_all(connection)


def _totals(connection: Connection) -> None:
    """Version 2: the totals over time, and how many GPUs a session had held."""
    totals.create(connection, checkfirst=True)
    _add_column(connection, sessions.c.gpus)


def _waiting(connection: Connection) -> None:
    """Version 3: the GPU queue, and counters that last."""
    amounts.create(connection, checkfirst=True)
    _add_column(connection, sessions.c.gpu_name)
    _add_column(connection, sessions.c.waiting_since)


def _courtesy(connection: Connection) -> None:
    """Version 4: how much "keep" users have had.

    Notes were in a table of their own, ``marks``, from here to version 17.
    """
    keeps.create(connection, checkfirst=True)
    audit_by_user.create(connection, checkfirst=True)


def _deletion(connection: Connection) -> None:
    """Version 5: one service at a time, orders to delete.

    Accounts behind names had a table of their own, too, until version 14.
    """
    for table in (lease, deletions):
        table.create(connection, checkfirst=True)
    if not connection.execute(lease.select()).first():
        nobody = {"holder": "", "term": 0, "beat": 0, "seconds": 0.0, "place": ""}
        connection.execute(lease.insert().values(id=1, **nobody))


def _bring_back(connection: Connection) -> None:
    """Version 6: which checkpoint comes back next, and which was put away last."""
    _add_column(connection, sessions.c.bring_back)
    _add_column(connection, sessions.c.dismissed)


def _naps(connection: Connection) -> None:
    """Version 7: the phase ``napping``, and orders to nap and to wake.

    No table changes; but an older release does not know these words and has to refuse
    the journal, not to fail at the first row.
    """
    del connection


def _reclaimed(connection: Connection) -> None:
    """Version 8: reclaimed GPU time by suspension, for the report of a month."""
    reclaimed.create(connection, checkfirst=True)


def _own_idle_time(connection: Connection) -> None:
    """Version 9: the idle time that a session's user has chosen."""
    _add_column(connection, sessions.c.own_idle_time)


def _nap_memory(connection: Connection) -> None:
    """Version 10: GPU memory that naps have moved out, for the report of a month."""
    nap_memory.create(connection, checkfirst=True)


def _store(connection: Connection) -> None:
    """Version 11: which store is meant."""
    store.create(connection, checkfirst=True)


def _session_ids(connection: Connection) -> None:
    """Version 12: ids of sessions, and the accounts that they belong to."""
    _add_column(connection, sessions.c.session)
    _add_column(connection, sessions.c.account)


def _stamps(connection: Connection) -> None:
    """Version 13: the order among checkpoints is a stamp, of a term and a generation.

    A pending order to delete had the time instead. What is there now has no term: of
    that, the order covers what is not above the highest generation that the journal
    knows under that name.
    """
    _add_column(connection, sessions.c.term)
    known = {column["name"] for column in inspect(connection).get_columns("deletions")}
    if "asked" not in known:
        return
    # Made anew: SQLite drops columns only from its version 3.35 on.
    columns = [each for each in deletions.columns if each.name in known - {"id"}]
    orders = [dict(each) for each in connection.execute(select(*columns)).mappings()]
    deletions.drop(connection)
    deletions.create(connection)
    for order in orders:
        connection.execute(deletions.insert().values(**order))
    for table in (sessions, checkpoints):
        mine = (table.c.user == deletions.c.user) & (
            table.c.server == deletions.c.server
        )
        query = select(func.max(table.c.generation)).where(mine)
        highest = func.coalesce(query.scalar_subquery(), 0)
        connection.execute(
            deletions.update()
            .where(deletions.c.generation < highest)
            .values(generation=highest)
        )


def _accounts(connection: Connection) -> None:
    """Version 14: the account is in the session's row alone.

    A name without a row had nothing that anybody could inherit.
    """
    _add_column(connection, sessions.c.claimed)
    if not inspect(connection).has_table("owners"):
        return
    owners = Table("owners", MetaData(), autoload_with=connection)
    for known in connection.execute(owners.select()).mappings().all():
        mine = of_session(sessions, SessionKey(known["user"], known["server"]))
        row = sessions.update().where(mine)
        connection.execute(row.values(claimed=known["claimed"] != ""))
        nobodys = row.where(sessions.c.account == "")
        connection.execute(nobodys.values(account=known["owner"]))
    owners.drop(connection)


def _deleted_accounts(connection: Connection) -> None:
    """Version 15: whose the deleted servers were."""
    _add_column(connection, deletions.c.accounts)


def _drains(connection: Connection) -> None:
    """Version 16: nodes that are drained; orders to save, and names of save points.

    An older release does not know the word for such an order, as of version 7.
    """
    drains.create(connection, checkfirst=True)
    _add_column(connection, sessions.c.save_name)
    _add_column(connection, checkpoints.c.name)


#: How the names of marks began, and the kinds of the notes that they became.
_MARKS = {
    "trail:": "reader",
    "renew login:": "login renewal",
    "culled:": "culler",
    "order to delete:": "deletion",
    "deletion:": "expiry",
    "naps-counted": "naps",
    "tab keys of:": "tab key",
    "tab keys void until:": "no tab keys",
}


def _notes(connection: Connection) -> None:
    """Version 17: notes have a kind and a subject; both were in the name of a mark."""
    notes.create(connection, checkfirst=True)
    if not inspect(connection).has_table("marks"):
        return
    marks = Table("marks", MetaData(), autoload_with=connection)
    for mark in connection.execute(marks.select()).mappings().all():
        for prefix, kind in _MARKS.items():
            if mark["name"].startswith(prefix):
                subject = mark["name"].removeprefix(prefix)
                row = {"kind": kind, "subject": subject, "value": mark["value"]}
                connection.execute(notes.insert().values(**row))
    marks.drop(connection)


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    _first,
    _totals,
    _waiting,
    _courtesy,
    _deletion,
    _bring_back,
    _naps,
    _reclaimed,
    _own_idle_time,
    _nap_memory,
    _store,
    _session_ids,
    _stamps,
    _accounts,
    _deleted_accounts,
    _drains,
    _notes,
)


def _add_column(connection: Connection, column: Column[Any]) -> None:
    """Add a column to its table, unless a new database has it from the start."""
    table = column.table.name
    known = {each["name"] for each in inspect(connection).get_columns(table)}
    if column.name not in known:
        made = CreateColumn(column).compile(dialect=connection.dialect)
        connection.execute(DDL(f"ALTER TABLE {table} ADD COLUMN {made}"))


def _lock_migrations(connection: Connection) -> None:
    """Keep other services from migrating the same database at the same time."""
    if connection.dialect.name == "sqlite":
        # Its driver begins a transaction only before rows change, not before tables do.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATING})")


def migrate(connection: Connection) -> int:
    """Bring a database to the newest version, inside the caller's transaction.

    Returns:
        The version it had before; 0 for a new one.

    Raises:
        Refused: it was written by a newer release of ours.
    """
    _lock_migrations(connection)
    schema.create(connection, checkfirst=True)
    found = connection.execute(schema.select()).scalars().all()
    version = max(found, default=0)
    if version > len(MIGRATIONS):
        raise Refused(Reason.JOURNAL_NEWER, version=version, known=len(MIGRATIONS))
    for number, migration in enumerate(MIGRATIONS[version:], start=version + 1):
        migration(connection)
        connection.execute(schema.insert().values(version=number))
    return version


def of_session(table: Any, key: SessionKey) -> Any:
    """Make the condition that picks the rows of a session."""
    return and_(table.c.user == key.user, table.c.server == key.server)


#: Insert statements, made once: composing a statement takes longer than running it.
_INSERT = {each: each.insert() for each in (sessions, checkpoints, audit, amounts)}
_NO_SESSION = sessions.delete().where(
    sessions.c.user == bindparam("its_user"),
    sessions.c.server == bindparam("its_server"),
)
_NO_CHECKPOINT = checkpoints.delete().where(checkpoints.c.id == bindparam("its_id"))
_NO_AMOUNT = amounts.delete().where(amounts.c.name == bindparam("its_name"))


def replace_session(row: SessionRow) -> list[Any]:
    """Statements that write a row whether or not it is there, on any database."""
    mine = {"its_user": row.key.user, "its_server": row.key.server}
    return [
        (_NO_SESSION, mine),
        (_INSERT[sessions], _session_values(row)),
    ]


def replace_checkpoint(row: CheckpointRow) -> list[Any]:
    """Statements that write a checkpoint's row whether or not it is there."""
    values = msgspec.structs.asdict(row)
    key = values.pop("key")
    values["keeping"] = row.keeping.value
    values["info"] = None if row.info is None else codec.encode(row.info).decode()
    values.update(user=key.user, server=key.server)
    return [
        (_NO_CHECKPOINT, {"its_id": row.id}),
        (_INSERT[checkpoints], values),
    ]


def _session_values(row: SessionRow) -> dict[str, Any]:
    values = msgspec.structs.asdict(row)
    key = values.pop("key")
    values.update(user=key.user, server=key.server)
    values["phase"] = row.phase.value
    values["intent"] = row.intent.value
    values["failure"] = (
        None if row.failure is None else codec.encode(row.failure).decode()
    )
    return values


def replace_amounts(counted: Mapping[str, float]) -> list[Any]:
    """Statements that write amounts whether or not they are there."""
    statements: list[Any] = []
    for name, value in counted.items():
        statements.append((_NO_AMOUNT, {"its_name": name}))
        statements.append((_INSERT[amounts], {"name": name, "value": value}))
    return statements


def audit_row(row: Mapping[Any, Any]) -> AuditRow:
    """Turn a line of the audit's table into a row."""
    return AuditRow(
        at=row["at"],
        key=SessionKey(row["user"], row["server"]),
        who=row["who"],
        what=row["what"],
        code=row["code"],
        message=row["message"],
    )


def insert_audit(row: AuditRow) -> Any:
    """The statement that adds a line to the audit."""
    return _INSERT[audit], audit_values(row)


def audit_values(row: AuditRow) -> dict[str, Any]:
    """The columns of a line of the audit."""
    values = msgspec.structs.asdict(row)
    key = values.pop("key")
    return {**values, "user": key.user, "server": key.server}


def session_row(row: Mapping[str, Any]) -> SessionRow:
    """Turn a line of the sessions' table into a row."""
    values = _with_key(row)
    failure = values.pop("failure")
    values["failure"] = codec.decode(failure, Failure) if failure else None
    return decoders.convert(values, SessionRow, strict=False, from_attributes=True)


def checkpoint_row(row: Mapping[str, Any]) -> CheckpointRow:
    """Turn a line of the checkpoints' table into a row."""
    values = _with_key(row)
    info = values.pop("info")
    values["info"] = codec.decode(info, CheckpointInfo) if info else None
    return decoders.convert(values, CheckpointRow, strict=False, from_attributes=True)


def _with_key(row: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the columns of user and server by one key."""
    values = {str(name): value for name, value in row.items()}
    values["key"] = SessionKey(values.pop("user"), values.pop("server"))
    return values

"""The journal's tables and migrations, in order.

A released migration is never changed; a new one is added at the end and only ever adds
to what is there, so that a frozen sample of each version
(``tests/controlplane/samples``) can be opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    inspect,
)
from sqlalchemy.schema import CreateColumn

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

metadata = MetaData()

#: Number of the advisory lock that PostgreSQL knows a migration of ours by.
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

#: Who has used how much of the keep quota. Lines are needed for a day after their end.
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

#: How far readers of the audit are, and what was announced once.
marks = Table(
    "marks",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Float, nullable=False),
)

#: Which service may work on this journal: one row. ``beat`` grows with each renewal,
#: ``term`` with each holder, so that no clock of two machines is ever compared.
lease = Table(
    "lease",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("holder", Text, nullable=False),  # empty: given back
    Column("term", Integer, nullable=False),
    Column("beat", Integer, nullable=False),
    Column("seconds", Float, nullable=False),  # of stillness until it has lapsed
    Column("place", Text, nullable=False),  # JSON of lease.Place
)

#: Which account of the Hub has started a server last, and since when.
owners = Table(
    "owners",
    metadata,
    Column("user", Text, primary_key=True),
    Column("server", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("since", Float, nullable=False),
    Column("claimed", Text, nullable=False),  # another account of that name
)

#: Deleted servers, until nothing of them is left anywhere.
deletions = Table(
    "deletions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("user", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("asked", Float, nullable=False),
    Column("incarnations", Text, nullable=False),  # JSON: those to be ended
    Column("spared", Text, nullable=False),  # JSON: those that were started since
    Index("deletions_by_session", "user", "server"),
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
    """Version 4: how much "keep" users have had, and marks of audit readers."""
    keeps.create(connection, checkfirst=True)
    marks.create(connection, checkfirst=True)
    audit_by_user.create(connection, checkfirst=True)


def _deletion(connection: Connection) -> None:
    """Version 5: one service at a time, accounts behind names, orders to delete."""
    for table in (lease, owners, deletions):
        table.create(connection, checkfirst=True)
    if not connection.execute(lease.select()).first():
        nobody = {"holder": "", "term": 0, "beat": 0, "seconds": 0.0, "place": ""}
        connection.execute(lease.insert().values(id=1, **nobody))


def _bring_back(connection: Connection) -> None:
    """Version 6: which checkpoint comes back next, and which was put away last."""
    _add_column(connection, sessions.c.bring_back)
    _add_column(connection, sessions.c.dismissed)


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    _first,
    _totals,
    _waiting,
    _courtesy,
    _deletion,
    _bring_back,
)


def _add_column(connection: Connection, column: Column[Any]) -> None:
    """Add it to its table, unless a new database has it from the start."""
    table = column.table.name
    known = {each["name"] for each in inspect(connection).get_columns(table)}
    if column.name not in known:
        made = CreateColumn(column).compile(dialect=connection.dialect)
        connection.execute(DDL(f"ALTER TABLE {table} ADD COLUMN {made}"))


def _alone(connection: Connection) -> None:
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
    _alone(connection)
    schema.create(connection, checkfirst=True)
    found = connection.execute(schema.select()).scalars().all()
    version = max(found, default=0)
    if version > len(MIGRATIONS):
        raise Refused(Reason.JOURNAL_NEWER, version=version, known=len(MIGRATIONS))
    for number, migration in enumerate(MIGRATIONS[version:], start=version + 1):
        migration(connection)
        connection.execute(schema.insert().values(version=number))
    return version

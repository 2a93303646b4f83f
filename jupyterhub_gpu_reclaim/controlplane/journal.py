"""Stores what must survive a crash: sessions, checkpoints, and who did what.

SQLAlchemy, on SQLite by default (WAL, ``synchronous=FULL``). It decides nothing and
does not know what a phase means. Modules with tables of their own use
:meth:`Journal.read` and :meth:`Journal.write`.

Every call is synchronous: a change is one transaction of about a millisecond, on the
event loop on purpose, so that what is read, decided and written between two ``await``s
is one step that nothing can split. One service at a time works on a journal, through
the one connection that has PostgreSQL's lock.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused, StoreError
from jupyterhub_gpu_reclaim.common.models import BELIEVED
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.term import Term
from jupyterhub_gpu_reclaim.controlplane import schema
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, SessionRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection

    from jupyterhub_gpu_reclaim.common.models import AuditLine, SessionKey

T = TypeVar("T")


class JournalCache:
    def __init__(
        self, sessions: Iterable[SessionRow], checkpoints: Iterable[CheckpointRow]
    ) -> None:
        self.sessions = {row.key: row for row in sessions}
        self.checkpoints: dict[str, CheckpointRow] = {}
        self.by_key: dict[SessionKey, dict[str, CheckpointRow]] = {}
        self.keep(checkpoints)

    def keep(self, rows: Iterable[CheckpointRow]) -> None:
        for row in rows:
            self.drop(row.id)
            self.checkpoints[row.id] = row
            self.by_key.setdefault(row.key, {})[row.id] = row

    def drop(self, checkpoint: str) -> None:
        row = self.checkpoints.pop(checkpoint, None)
        if row is None:
            return
        del self.by_key[row.key][checkpoint]
        if not self.by_key[row.key]:
            del self.by_key[row.key]


def _age(row: CheckpointRow) -> tuple[tuple[int, int], str]:
    return row.stamp, row.id


_log = logging.getLogger(__name__)

#: Seconds that SQLite waits for another program (a backup, say) that holds the file.
BUSY_SECONDS = 10.0
#: Most lines of the audit that are deleted in one transaction.
PRUNED_LINES = 500
#: Most lines of the audit for one session; older ones are deleted.
LINES_OF_A_SESSION = 10_000
#: Most lines of a session that are deleted at a time: a tenth of a second.
MOST_PRUNED = 20_000
#: Number of the advisory lock in PostgreSQL.
_NUMBER = 0x67_70_75_73


class Journal:
    """The rows, each change in one transaction.

    Raises:
        StoreError: the database cannot be opened or written.
        Refused: it has another version, or is of a kind that we cannot lock.
    """

    def __init__(self, url: str) -> None:
        self._known_cache: JournalCache | None = None
        #: one more with each service that works on it; 0: we do not
        self.term = 0
        self._name = uuid.uuid4().hex
        self._lock: int | None = None  #: the file beside SQLite's that is locked
        self._engine = _engine(url)
        try:
            self._connection = self._engine.connect()
            with self._connection.begin():
                if self._engine.name == "sqlite":  # a power cut loses nothing
                    self._connection.exec_driver_sql("PRAGMA journal_mode=WAL")
                    self._connection.exec_driver_sql("PRAGMA synchronous=FULL")
                schema.create(self._connection)
        except BaseException as error:
            self._engine.dispose()
            if isinstance(error, SQLAlchemyError):
                raise _store_error(error) from None
            raise

    def close(self) -> None:
        """Close the database, and let another service have it; nothing is buffered."""
        self._connection.close()
        self._engine.dispose()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- whose it is
    def take(self) -> bool:
        """Take the journal, in a new term, if it is free; whether it is ours now.

        Raises:
            StoreError: the database does not answer, or cannot be written.
        """
        if self.term:
            return True
        with self._transaction() as connection:
            if not self._is_locked(connection):
                return False
            number = schema.term.c.number
            connection.execute(schema.term.update().values(number=number + 1))
            term: int = connection.execute(select(number)).scalar_one()
        self.term = term
        return True

    def _is_locked(self, connection: Connection) -> bool:
        """Take the journal's lock if it is free; whether it is held now. Idempotent.

        Two services on one journal, after a rolling update for example, would each undo
        what the other has done. The kernel, or PostgreSQL, keeps the lock for as long
        as its holder lives, and frees it when that has ended in whatever way; nothing
        is renewed, and no clock is read. PostgreSQL's belongs to the connection, and is
        lost with it.

        Raises:
            StoreError: the file cannot be made.
        """
        if connection.dialect.name == "postgresql":
            asked = connection.exec_driver_sql(
                f"SELECT pg_try_advisory_lock({_NUMBER})"
            )
            return bool(asked.scalar_one())
        if self._lock is None:
            database = connection.exec_driver_sql("PRAGMA database_list").all()[0][2]
            if not database:
                return True
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            try:
                self._lock = os.open(f"{database}.lock", flags, 0o600)
            except OSError as error:
                raise _store_error(error) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_held(self) -> bool:
        """Whether the journal is still ours; if it does not answer, it is not."""
        try:
            return self.read(schema.term.select()) == [{"number": self.term}]
        except StoreError as error:
            _log.warning("service: %s", error)
            return False

    @property
    def stamp(self) -> Term:
        return Term(number=self.term, holder=self._name)

    def rise(self, above: int) -> None:
        """Raise the term above one that agents or store know, of whatever journal.

        Pending orders to delete get the new one, too: they were given before anything
        of the other journal was known, and cover that.

        Raises:
            StoreError: the database does not answer; or another service has taken it,
                where its locks hold nobody off.
        """
        if self.term > above:
            return
        if above > BELIEVED:
            _log.warning("service: no service had term %d; it is passed over", above)
            return
        raised = self._raised(above + 1)
        with self._transaction() as connection:
            mine = schema.term.update().where(schema.term.c.number == self.term)
            if connection.execute(mine.values(number=above + 1)).rowcount != 1:
                what = "journal: another service has taken it"
                raise StoreError(Reason.INTERNAL, detail=what)
            for statement in raised:
                connection.execute(*statement)
        self.term = above + 1
        _log.info("service: term %d was known; ours is higher now", above)

    def _raised(self, term: int) -> list[Any]:
        orders = self.notes(NoteKind.DELETED, dict)
        return [
            statement
            for subject, order in orders.items()
            if order["stamp"][0] == self.term
            for statement in schema.note(
                NoteKind.DELETED,
                subject,
                {**order, "stamp": [term, order["stamp"][1]]},
            )
        ]

    # --- sessions
    def session(self, key: SessionKey) -> SessionRow | None:
        return self._cache().sessions.get(key)

    def sessions(self) -> list[SessionRow]:
        rows = self._cache().sessions
        return [rows[key] for key in sorted(rows)]

    def save(
        self,
        row: SessionRow,
        audit: AuditLine | None = None,
        checkpoints: Iterable[CheckpointRow] = (),
        also: Iterable[Any] = (),
    ) -> None:
        changed = schema.note(NoteKind.SESSION, row.key.path, row)
        changed += schema.insert_audit(audit)
        with self._changing(*changed, *also, kept=checkpoints) as cache:
            cache.sessions[row.key] = row

    def forget(
        self,
        key: SessionKey,
        audit: AuditLine | None,
        to_delete: Iterable[CheckpointRow],
        also: Iterable[Any] = (),
    ) -> None:
        """Remove a session's row; its checkpoints stay until they are deleted."""
        removed = schema.forget_notes(NoteKind.SESSION, key.path)
        removed += schema.insert_audit(audit)
        with self._changing(*removed, *also, kept=to_delete) as cache:
            cache.sessions.pop(key, None)

    # --- checkpoints
    def checkpoint(self, checkpoint: str) -> CheckpointRow | None:
        return self._cache().checkpoints.get(checkpoint)

    def checkpoints(self, key: SessionKey | None = None) -> list[CheckpointRow]:
        cache = self._cache()
        rows = cache.checkpoints if key is None else cache.by_key.get(key, {})
        return sorted(rows.values(), key=_age)

    def keep(self, checkpoints: Iterable[CheckpointRow]) -> None:
        with self._changing(kept=checkpoints):
            pass

    def drop(self, checkpoint: str) -> None:
        dropped = schema.forget_notes(NoteKind.CHECKPOINT, checkpoint)
        with self._changing(*dropped) as cache:
            cache.drop(checkpoint)

    def _cache(self) -> JournalCache:
        if self._known_cache is None:
            self._known_cache = JournalCache(
                self.notes(NoteKind.SESSION, SessionRow).values(),
                self.notes(NoteKind.CHECKPOINT, CheckpointRow).values(),
            )
        return self._known_cache

    @contextmanager
    def _changing(
        self, *statements: Any, kept: Iterable[CheckpointRow] = ()
    ) -> Iterator[JournalCache]:
        """Write, then change the cache; if the outcome is not known, drop the cache."""
        rows = list(kept)
        written = [schema.note(NoteKind.CHECKPOINT, row.id, row) for row in rows]
        held, self._known_cache = self._cache(), None
        self.write(*statements, *itertools.chain(*written))
        held.keep(rows)
        yield held
        self._known_cache = held

    # --- audit
    def audit(
        self, of: SessionKey | str | None = None, limit: int = 100, before: int = 0
    ) -> list[AuditLine]:
        """Return the newest lines of a session, a user or everybody, newest first."""
        table = schema.audit
        query = table.select().order_by(table.c.id.desc()).limit(limit)
        if isinstance(of, str):
            query = query.where(table.c.user == of)
        elif of is not None:
            query = query.where(table.c.user == of.user, table.c.server == of.server)
        if before:
            query = query.where(table.c.id < before)
        return [schema.audit_row(row) for row in self.read(query)]

    def prune_audit(self, before: float) -> bool:
        """Delete older audit lines, a portion at a time; whether more may be left.

        The newest line stays: else SQLite would number the next one like the first.
        """
        table = schema.audit
        newest = select(func.max(table.c.id)).scalar_subquery()
        query = table.select().where(table.c.id < newest)
        query = query.order_by(table.c.id).limit(PRUNED_LINES)
        old = [row["id"] for row in self.read(query) if row["at"] < before]
        if old:
            self.write(table.delete().where(table.c.id.in_(old)))
        return len(old) == PRUNED_LINES

    def prune_long(self, most: int = LINES_OF_A_SESSION) -> None:
        table = schema.audit
        session, lines = (table.c.user, table.c.server), func.count().label("lines")
        long = select(*session, lines).group_by(*session).having(lines > most)
        for row in self.read(long):
            mine = (table.c.user == row["user"]) & (table.c.server == row["server"])
            portion = min(row["lines"] - most, MOST_PRUNED)
            oldest = select(table.c.id).where(mine).order_by(table.c.id)
            ids = self.read(oldest.offset(portion - 1).limit(1))
            if ids:
                self.write(table.delete().where(mine & (table.c.id <= ids[0]["id"])))

    # --- notes
    def noted(self, kind: NoteKind, subject: str) -> float | None:
        mine = schema.notes.c.subject == subject
        return self.notes(kind, float, mine).get(subject)

    def notes(self, kind: NoteKind, of: type[T], *which: Any) -> dict[str, T]:
        table = schema.notes
        found = self.read(table.select().where(table.c.kind == kind.value, *which))
        try:
            return {row["subject"]: codec.decode(row["value"], of) for row in found}
        except BadRequest as error:
            raise _store_error(error) from None

    def note(self, kind: NoteKind, subject: str, value: Any) -> None:
        self.write(*schema.note(kind, subject, value))

    def forget_notes(self, kind: NoteKind, *subjects: str) -> None:
        self.write(*schema.forget_notes(kind, *subjects))

    # --- for the modules that keep tables of their own
    def read(self, query: Any) -> list[dict[Any, Any]]:
        """Execute a query.

        Raises:
            StoreError: the database does not answer.
        """
        with self._transaction() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def write(self, *statements: Any) -> None:
        """Execute the statements in one transaction: all of them, or nothing.

        Raises:
            StoreError: it could not be written; nothing is changed.
        """
        if not statements:
            return
        with self._transaction() as connection:
            for statement in statements:
                given = statement if isinstance(statement, tuple) else (statement,)
                connection.execute(*given)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            if self._connection.invalidated:  # SQLAlchemy would make another one
                what = "journal: the connection that had its lock was lost"
                raise StoreError(Reason.INTERNAL, detail=what)
            with self._connection.begin():
                yield self._connection
        except SQLAlchemyError as error:
            raise _store_error(error) from None


def _store_error(error: Exception) -> StoreError:
    return StoreError(Reason.INTERNAL, detail=f"journal: {error}")


def _engine(url: str) -> Engine:
    backend = make_url(url).get_backend_name()
    if backend == "postgresql":
        # One whose machine is gone keeps its lock for half a minute, not for hours.
        options = (
            f"-c lock_timeout={round(BUSY_SECONDS * 1000)} -c tcp_keepalives_idle=10"
            " -c tcp_keepalives_interval=5 -c tcp_keepalives_count=4"
        )
        return create_engine(url, connect_args={"options": options})
    if backend != "sqlite":
        what = f"The journal can be in SQLite or in PostgreSQL, not in {backend}."
        raise Refused(Reason.SETTING_INVALID, what=what)
    return create_engine(url, connect_args={"timeout": BUSY_SECONDS})

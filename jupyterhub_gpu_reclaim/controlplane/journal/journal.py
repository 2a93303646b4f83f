"""Stores what must survive a crash: sessions, checkpoints, and who did what.

SQLAlchemy, on SQLite by default (WAL, ``synchronous=FULL``). It decides nothing and
does not know what a phase means; rows change their phase through
``sessions/registry.py``. Modules with tables of their own use :meth:`Journal.read` and
:meth:`Journal.write`.

Every call is synchronous. A change is one transaction, and short (a few rows by primary
key, about a millisecond with an fsync); sessions and checkpoints are read from memory
(``cache.py``). All of it is done on the event loop on purpose, so that what is read,
decided and written between two ``await``s is one step that nothing can split.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.journal import schema
from jupyterhub_gpu_reclaim.controlplane.journal.cache import JournalCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sqlalchemy import Connection

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.journal.lease import Lease
    from jupyterhub_gpu_reclaim.controlplane.model.rows import (
        AuditRow,
        CheckpointRow,
        SessionRow,
    )

#: Seconds that SQLite waits for another program (a backup, say) that holds the file.
BUSY_SECONDS = 10.0
#: Most lines of the audit that are deleted in one transaction.
PRUNED_LINES = 500
#: Most lines of the audit for one session; older ones are deleted.
LINES_OF_A_SESSION = 10_000
#: Most lines of a session that are deleted at a time: a tenth of a second.
MOST_PRUNED = 20_000


class Journal:
    """The rows, each change in one transaction.

    Args:
        url: an SQLAlchemy URL; ``sqlite://`` is in memory, for tests.

    Raises:
        StoreError: the database cannot be opened or written.
        Refused: it has another version.
    """

    def __init__(self, url: str) -> None:
        self._known_cache: JournalCache | None = None
        #: the right to write, if several services share the database
        self.lease: Lease | None = None
        self._engine = _engine(url)
        try:
            with self._engine.begin() as connection:
                schema.create(connection)
        except BaseException as error:
            self.close()
            if isinstance(error, SQLAlchemyError):
                raise _store_error(error) from None
            raise

    def close(self) -> None:
        """Close the database; nothing is ever buffered."""
        self._engine.dispose()

    # --- sessions
    def session(self, key: SessionKey) -> SessionRow | None:
        """Return the row of that session, if there is one."""
        return self._cache().session(key)

    def sessions(self) -> list[SessionRow]:
        """Return the rows of all sessions, by key."""
        return self._cache().sessions()

    def save(
        self,
        row: SessionRow,
        audit: AuditRow | None = None,
        checkpoints: Iterable[CheckpointRow] = (),
        amounts: Mapping[str, float] | None = None,
    ) -> None:
        """Write a session's new row with everything that belongs to it, at once.

        Args:
            row: the session.
            audit: a line of its history.
            checkpoints: its checkpoints that change, too.
            amounts: what is added to counters that last.
        """
        lines = [] if audit is None else [schema.insert_audit(audit)]
        statements = [*schema.replace_session(row), *lines]
        with self._changing(*statements, kept=checkpoints, amounts=amounts) as cache:
            cache.put(row)

    def forget(
        self,
        key: SessionKey,
        audit: AuditRow,
        to_delete: Iterable[CheckpointRow],
        amounts: Mapping[str, float] | None = None,
        also: Iterable[Any] = (),
    ) -> None:
        """Remove a session's row; its checkpoints stay until they are deleted."""
        removed = schema.sessions.delete().where(
            schema.of_session(schema.sessions, key)
        )
        statements = [removed, schema.insert_audit(audit), *also]
        with self._changing(*statements, kept=to_delete, amounts=amounts) as cache:
            cache.remove(key)

    def amount(self, name: str) -> float:
        """Return a counter that lasts; 0 if nothing was ever added."""
        return self._cache().amounts.get(name, 0.0)

    # --- checkpoints
    def checkpoint(self, checkpoint: str) -> CheckpointRow | None:
        """Return the row of that checkpoint, if there is one."""
        return self._cache().checkpoint(checkpoint)

    def checkpoints(self, key: SessionKey | None = None) -> list[CheckpointRow]:
        """Return the checkpoints of one session or of all, the oldest first."""
        return self._cache().checkpoints(key)

    def due(self, now: float) -> list[CheckpointRow]:
        """Return expired checkpoints."""
        rows = self._cache().checkpoints()
        return [row for row in rows if row.expires is not None and row.expires <= now]

    def keep(self, checkpoints: Iterable[CheckpointRow]) -> None:
        """Write how long checkpoints are kept."""
        with self._changing(kept=checkpoints):
            pass

    def drop(self, checkpoint: str) -> None:
        """Forget a checkpoint that is deleted; idempotent."""
        mine = schema.checkpoints.c.id == checkpoint
        with self._changing(schema.checkpoints.delete().where(mine)) as cache:
            cache.drop(checkpoint)

    def _cache(self) -> JournalCache:
        """Return the cache, read from the database once."""
        if self._known_cache is None:
            sessions = self.read(schema.sessions.select())
            kept = self.read(schema.checkpoints.select())
            found = self.read(schema.amounts.select())
            amounts = {row["name"]: row["value"] for row in found}
            self._known_cache = JournalCache(
                map(schema.session_row, sessions),
                map(schema.checkpoint_row, kept),
                amounts,
            )
        return self._known_cache

    @contextmanager
    def _changing(
        self,
        *statements: Any,
        kept: Iterable[CheckpointRow] = (),
        amounts: Mapping[str, float] | None = None,
    ) -> Iterator[JournalCache]:
        """Write, then change the cache; if the outcome is not known, drop the cache."""
        rows, counted = list(kept), self._cache().counted(amounts or {})
        written = [each for row in rows for each in schema.replace_checkpoint(row)]
        held, self._known_cache = self._cache(), None
        self.write(*statements, *written, *schema.replace_amounts(counted))
        held.keep(rows)
        held.amounts.update(counted)
        yield held
        self._known_cache = held

    # --- audit
    def audit(self, key: SessionKey | None = None, limit: int = 100) -> list[AuditRow]:
        """Return the newest audit lines first, of one session or of all."""
        table = schema.audit
        query = table.select().order_by(table.c.id.desc()).limit(limit)
        if key is not None:
            query = query.where(schema.of_session(table, key))
        return [schema.audit_row(row) for row in self.read(query)]

    def prune_audit(self, before: float) -> bool:
        """Delete older audit lines, the oldest first; return whether more may be left.

        The number deleted at a time is limited, so that the call is short. The newest
        line stays, however old: without it SQLite would number the next one like the
        first, and readers that go by the numbers would miss it.
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
        """Delete the oldest audit lines of sessions that have too many.

        The number deleted at a time is limited for each of them, so that the call is
        short.
        """
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

    def check(self) -> None:
        """Make sure, at the database, that this service may act; before every order.

        Raises:
            Unreachable: ``journal_held``: another service has taken the journal over.
            StoreError: the database does not answer, so nothing may be ordered.
        """
        if self.lease is not None:
            self.lease.renew()

    # --- for the modules that keep tables of their own
    def read(self, query: Any) -> list[dict[Any, Any]]:
        """Return the rows of a query.

        Raises:
            StoreError: the database does not answer.
        """
        try:
            with self._engine.connect() as connection:
                return [dict(r) for r in connection.execute(query).mappings()]
        except SQLAlchemyError as error:
            raise _store_error(error) from None

    def write(self, *statements: Any) -> None:
        """Execute the statements in one transaction: all of them, or nothing.

        Args:
            *statements: each alone or with its values; with them it is compiled once.

        Raises:
            StoreError: it could not be written; nothing is changed.
            Unreachable: ``journal_held``: another service has taken the journal over;
                nothing is changed.
        """
        if not statements:
            return
        try:
            with self._engine.begin() as connection:
                if self.lease is not None:
                    self.lease.hold(connection)
                for statement in statements:
                    given = statement if isinstance(statement, tuple) else (statement,)
                    connection.execute(*given)
        except SQLAlchemyError as error:
            raise _store_error(error) from None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction that needs no lease; for the lease itself.

        Raises:
            StoreError: the database does not answer; nothing is changed.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise _store_error(error) from None


def _store_error(error: Exception) -> StoreError:
    """Turn the journal's failure into an error for other rooms."""
    return StoreError(Reason.INTERNAL, detail=f"journal: {error}")


def _engine(url: str) -> Engine:
    """Make an engine whose SQLite loses nothing at a power cut."""
    backend = make_url(url).get_backend_name()
    if backend == "postgresql":
        # A service that is paused in a transaction must not hold up its successor.
        limits = "-c idle_in_transaction_session_timeout={0} -c lock_timeout={0}"
        given = {"options": limits.format(round(BUSY_SECONDS * 1000))}
        return create_engine(url, pool_pre_ping=True, connect_args=given)
    if backend != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    in_memory = make_url(url).database in {None, "", ":memory:"}
    options: dict[str, Any] = {"poolclass": StaticPool} if in_memory else {}
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS}, **options)

    def prepare(connection: Any, record: Any) -> None:
        del record
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()

    event.listen(engine, "connect", prepare)
    return engine

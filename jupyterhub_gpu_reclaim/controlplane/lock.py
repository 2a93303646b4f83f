"""The lock on a journal, which one service at a time holds.

Two services on one journal, after a rolling update for example, would each undo what
the other has done. The kernel, or PostgreSQL, keeps the lock for as long as its holder
lives, and frees it when that has ended in whatever way; nothing is renewed, and no
clock is read.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from sqlalchemy import Connection


#: Number of the advisory lock in PostgreSQL.
_NUMBER = 0x67_70_75_73


class JournalLock:
    """The lock of one journal: a file beside SQLite's, an advisory one of PostgreSQL.

    PostgreSQL's belongs to the connection, and is lost with it.
    """

    def __init__(self) -> None:
        self._file: int | None = None

    def take(self, connection: Connection) -> bool:
        """Take the lock if it is free; return whether it is held now. Idempotent.

        Raises:
            StoreError: the file cannot be made.
        """
        if connection.dialect.name == "postgresql":
            asked = connection.exec_driver_sql(
                f"SELECT pg_try_advisory_lock({_NUMBER})"
            )
            return bool(asked.scalar_one())
        if self._file is None:
            database = connection.exec_driver_sql("PRAGMA database_list").all()[0][2]
            if not database:
                return True
            self._file = _open(Path(f"{database}.lock"))
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(Reason.INTERNAL, detail=f"journal: {error}") from None

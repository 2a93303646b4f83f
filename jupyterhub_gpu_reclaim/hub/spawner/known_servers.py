"""Files beside the journal, one for each server with a session: for an older database.

A database that is put back says nothing of a session that was begun after the backup.
As long as the service answers, it knows; without it the next start would be cold,
beside what runs or is saved. So a file stands for each server whose pointer says that
there is something, written before the pointer and removed after it. Where it says more
than the database, what becomes of that server is *unknown*, never *nothing*. It names
the sessions, too, so that a server that is deleted takes them with it.

The folder is the service's own. Where it cannot be written, a Hub works as without it.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.durable import sync_folder, write_durably

if TYPE_CHECKING:
    from pathlib import Path

    from jupyterhub_gpu_reclaim.common.models import SessionKey

_log = logging.getLogger(__name__)

#: Name of the folder inside the service's.
FOLDER = "servers"
#: Most sessions of one server that are named; more are begun only where none is ever
#: stopped.
MOST_SESSIONS = 16


class KnownServers:
    """The files of all servers, in the service's own folder; None: nothing is noted.

    Their names tell nothing to a person who looks; each holds the ids of its sessions,
    the newest last.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder / FOLDER if folder is not None else None

    def has(self, key: SessionKey) -> bool:
        """Whether something was begun for that server, and has not ended for good."""
        path = self._path(key)
        return path is not None and path.exists()

    def sessions(self, key: SessionKey) -> tuple[str, ...]:
        """Ids of the sessions that were begun for that server, as far as noted."""
        path = self._path(key)
        try:
            return tuple(path.read_text().split()) if path is not None else ()
        except OSError:
            return ()

    def add(self, key: SessionKey, session: str) -> None:
        """Note that a session is begun for a server; its id, if that is known."""
        path, known = self._path(key), self.sessions(key)
        if path is None or (path.exists() and session in {"", *known}):
            return
        ids = (*known, session)[-MOST_SESSIONS:] if session else known
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_durably(path, "\n".join(ids).encode())
        except OSError as error:
            _log.warning("%s: not noted beside the Hub's database: %s", key, error)

    def remove(self, key: SessionKey) -> None:
        """Remove a server's file: nothing of its sessions is left."""
        path = self._path(key)
        if path is None or not path.exists():
            return
        try:
            path.unlink()
            sync_folder(path.parent)
        except OSError as error:
            _log.warning("%s: its note is not removed: %s", key, error)

    def _path(self, key: SessionKey) -> Path | None:
        if self._folder is None:
            return None
        # A user's name may hold anything, and be longer than a file's may be.
        name = hashlib.sha256(f"{key.user}\0{key.server}".encode()).hexdigest()
        return self._folder / f"{name}.json"

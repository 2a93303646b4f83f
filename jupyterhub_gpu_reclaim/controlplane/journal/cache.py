"""The journal's sessions and checkpoints in memory, for the reads of every tick.

The cache is changed only after the database has taken the same change, and read again
if a write's outcome is not known; so it needs the service to be the journal's only
writer. It exists because, with ten thousand sessions, a query per session and tick took
most of the service's time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow, SessionRow


class JournalCache:
    def __init__(
        self,
        sessions: Iterable[SessionRow],
        checkpoints: Iterable[CheckpointRow],
        amounts: Mapping[str, float],
    ) -> None:
        self.amounts = dict(amounts)
        self._sessions = {row.key: row for row in sessions}
        self._sorted = sorted(self._sessions)
        self._checkpoints: dict[str, CheckpointRow] = {}
        self._by_key: dict[SessionKey, list[CheckpointRow]] = {}
        self.keep(checkpoints)

    def session(self, key: SessionKey) -> SessionRow | None:
        return self._sessions.get(key)

    def sessions(self) -> list[SessionRow]:
        if len(self._sorted) != len(self._sessions):
            self._sorted = sorted(self._sessions)
        return [self._sessions[key] for key in self._sorted]

    def checkpoint(self, checkpoint: str) -> CheckpointRow | None:
        return self._checkpoints.get(checkpoint)

    def checkpoints(self, key: SessionKey | None = None) -> list[CheckpointRow]:
        if key is None:
            return sorted(self._checkpoints.values(), key=_age)
        return list(self._by_key.get(key, ()))

    def counted(self, more: Mapping[str, float]) -> dict[str, float]:
        return {name: self.amounts.get(name, 0.0) + x for name, x in more.items()}

    def put(self, row: SessionRow) -> None:
        self._sessions[row.key] = row

    def remove(self, key: SessionKey) -> None:
        self._sessions.pop(key, None)
        self._sorted = []

    def keep(self, rows: Iterable[CheckpointRow]) -> None:
        for row in rows:
            self.drop(row.id)
            self._checkpoints[row.id] = row
            mine = self._by_key.setdefault(row.key, [])
            mine.append(row)
            mine.sort(key=_age)

    def drop(self, checkpoint: str) -> None:
        row = self._checkpoints.pop(checkpoint, None)
        if row is None:
            return
        left = [each for each in self._by_key[row.key] if each.id != checkpoint]
        if left:
            self._by_key[row.key] = left
        else:
            del self._by_key[row.key]


def _age(row: CheckpointRow) -> tuple[tuple[int, int], str]:
    return row.stamp, row.id

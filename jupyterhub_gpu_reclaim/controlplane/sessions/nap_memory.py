"""GPU memory that naps move out, over time: the data of the monthly report.

The agent says what naps, and when that changes a piece ends and another one begins:
one row for each, open while it lasts. Rows begin when the service has seen a nap, and
end when it has seen its end, or with the session. So a crash doubles nothing; what
changed while no service ran is counted as of the moment at which one looks again.

What was never counted is not zero: :func:`counted_since` is when counting began.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.report import KEPT
from jupyterhub_gpu_reclaim.controlplane.journal import notes, schema
from jupyterhub_gpu_reclaim.controlplane.journal.notes import NoteKind

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import Nap
    from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal

_log = logging.getLogger(__name__)


class NapPiece(NamedTuple):
    """GPU memory of one model that a session had moved out, while it was that much."""

    user: str
    server: str
    node: str
    gpu_name: str
    bytes: float
    begun: float
    ended: float


class NapMemory:
    """Writes the pieces of naps.

    Args:
        journal: where the pieces are.
        clock: the clock of their times.
    """

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        #: bytes written as moved out, by session and model; None: not read
        self._open: dict[SessionKey, dict[str, float]] | None = None

    def note(self, key: SessionKey, node: str, nap: Nap | None) -> None:
        """Note what naps of a session now; what cannot be written is due next time."""
        moved: dict[str, float] = defaultdict(float)
        for gpu in nap.gpus if nap is not None else ():
            moved[gpu.name] += gpu.memory or 0
        try:
            known = self._read()
            if known.get(key, {}) == moved:
                return
            now = self._clock.now()
            whose = {"user": key.user, "server": key.server, "node": node}
            pieces = [
                {**whose, "gpu_name": name, "bytes": memory, "begun": now}
                for name, memory in moved.items()
            ]
            table = schema.nap_memory
            self._journal.write(
                *ended(key, now),
                table.delete().where(table.c.ended < now - KEPT),
                *(table.insert().values(**piece) for piece in pieces),
            )
        except ReclaimError as error:
            _log.warning("%s: its nap is not counted yet: %s", key, error.message)
            return
        known[key] = dict(moved)
        if not moved:
            del known[key]

    def forget(self, key: SessionKey) -> None:
        """End the pieces of a session that has ended."""
        if self._open is not None:
            self._open.pop(key, None)

    def _read(self) -> dict[SessionKey, dict[str, float]]:
        """Read what the journal has as moved out; the first time, begin to count."""
        if self._open is None:
            if counted_since(self._journal) is None:
                begun = notes.note(NoteKind.NAPS, "", self._clock.now())
                self._journal.write(*begun)
            table = schema.nap_memory
            query = table.select().where(table.c.ended.is_(None))
            found: dict[SessionKey, dict[str, float]] = {}
            for line in self._journal.read(query):
                key = SessionKey(line["user"], line["server"])
                found.setdefault(key, {})[line["gpu_name"]] = line["bytes"]
            self._open = found
        return self._open


def ended(key: SessionKey, now: float) -> list[Any]:
    """Make statements that end the pieces of a session."""
    table = schema.nap_memory
    still = schema.of_session(table, key) & table.c.ended.is_(None)
    return [table.update().where(still).values(ended=now)]


def counted_since(journal: Journal) -> float | None:
    """Return since when naps are counted; None: no service has counted yet."""
    return notes.read(journal, NoteKind.NAPS)


def between(journal: Journal, begin: float, end: float) -> list[NapPiece]:
    """Return the pieces that reach into a time; an open one reaches to its end.

    Raises:
        StoreError: the journal does not answer.
    """
    table = schema.nap_memory
    lasts = table.c.ended.is_(None) | (table.c.ended > begin)
    query = table.select().where(lasts, table.c.begun < end)
    return [_piece(line, end) for line in journal.read(query)]


def _piece(line: dict[Any, Any], end: float) -> NapPiece:
    values = (line[name] for name in NapPiece._fields)
    return NapPiece._make(end if value is None else value for value in values)

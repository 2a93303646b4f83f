"""Records of sessions that have ended: told for an hour, then forgotten.

A session that was resumed and then stopped, or that has died, leaves its record. From
it the service learns how the session ended and which checkpoint it had come from. A
service that was away for longer goes by the store, as it does after a start of the
agent, which forgets such records too (``workflows/recovery.py``). If they stayed, each
would be read and told at every look until then.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.node.operations.operations import Operations
    from jupyterhub_gpu_reclaim.node.operations.records import Record, Records

_log = logging.getLogger(__name__)

#: Seconds from the first look that finds its init gone.
KEPT_SECONDS = 3600.0


class EndedSessions:
    def __init__(self, records: Records, operations: Operations, clock: Clock) -> None:
        self._records = records
        self._operations = operations
        self._clock = clock
        self._since: dict[str, float] = {}

    def among(self, known: Collection[Record], here: Collection[str]) -> list[Record]:
        """The records without an init; those told for long enough are deleted."""
        # ``here``: incarnations that have an init.
        now = self._clock.monotonic()
        ended = [record for record in known if record.incarnation not in here]
        before = self._since
        # Whose init is seen again has not ended: its time begins anew.
        self._since = {
            record.incarnation: before.get(record.incarnation, now) for record in ended
        }
        return [record for record in ended if not self._forgotten(record, now)]

    def _forgotten(self, record: Record, now: float) -> bool:
        name = record.incarnation
        if now - self._since[name] < KEPT_SECONDS or self._operations.running(name):
            return False
        try:
            self._records.delete(name)
        except OSError as error:
            _log.warning("%s its record stays: %s", record.key, error)
            return False
        return True

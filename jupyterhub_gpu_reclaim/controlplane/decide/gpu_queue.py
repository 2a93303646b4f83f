"""The GPU queue: which sessions wait for a GPU, and whose turn it is.

There are three kinds of waiting. On one machine a resume has its place and lacks GPU
memory: the journal says which sessions wait, and the order is decided here. On
Kubernetes a pod waits for a node: its scheduler decides, and this module only reports.
A session that wakes waits for memory of its own card: its agent decides, by the same
order, and this module reports its place among those who want that card.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.fair_order import fair
from jupyterhub_gpu_reclaim.common.models import Event, Failure, Phase, Step, Waiting
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration, size
from jupyterhub_gpu_reclaim.controlplane.session import LIVE, failure_of
from jupyterhub_gpu_reclaim.controlplane.settle import no_room

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey, Shortage
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


#: The step of a resume that a waiting user reads.
STEP = "queue"
#: Seconds after which an agent's word that a session waits no longer counts.
_OLD = 60.0


@dataclass(eq=False)
class GpuQueue:
    sessions: Sessions

    def refresh(self) -> list[Waiting]:
        """Return the queue in its order; tell readers of changed places."""
        rows = {row.key: row for row in self._waiting_rows()}
        since = ((key, row.waiting_since or 0.0) for key, row in rows.items())
        order = fair(since, self._gpu_holders() if rows else {})
        found = [self._waiting(rows[key]) for key in order]
        found += [
            each for each in self.sessions.agent.waiting() if each.key not in rows
        ]
        found = [
            msgspec.structs.replace(each, place=place)
            for place, each in enumerate(found, start=1)
        ]
        self._tell_places(order, len(found))
        wakes = self.wakes()
        found += [self._waking(row, shortage) for row, shortage in wakes]
        self._note_places(found)
        self._count_wakes(wakes)
        return found

    def _count_wakes(self, wakes: list[tuple[SessionRow, Shortage]]) -> None:
        now = self.sessions.clock.now()
        since = {row.key: now - shortage.waited for row, shortage in wakes}
        for key, runtime in self.sessions.runtimes.items():
            tree, before = runtime.napping, runtime.wake_waits
            naps = tree.nap.bytes if tree is not None and tree.nap is not None else 0
            if tree is not None and tree.operation == "wake" and key not in since:
                continue  # it has room, and is being moved back
            runtime.wake_waits = (since[key], naps) if key in since else None
            if before is not None and runtime.wake_waits is None:
                begun, napped = before
                outcome = "served" if naps < napped else "left"
                self.sessions.counters.waited(outcome, now - begun)

    def wakes(self) -> list[tuple[SessionRow, Shortage]]:
        sessions, now = self.sessions, self.sessions.clock.monotonic()
        found: list[tuple[SessionRow, Shortage]] = []
        for key, runtime in list(sessions.runtimes.items()):
            if runtime.napping is None:
                continue
            row = sessions.row(key)
            shortage = runtime.shortage_of(row.incarnation)
            heard = now - runtime.napping_seen < _OLD
            if shortage is not None and heard and row.phase in LIVE:
                found.append((row, shortage))
        return sorted(found, key=lambda one: (one[1].place, -one[1].waited, one[0].key))

    def _waking(self, row: SessionRow, shortage: Shortage) -> Waiting:
        card = shortage.cards[0]
        facts = {"needed": size(card.needed), "free": size(card.free)}
        return Waiting(
            key=row.key,
            place=shortage.place,
            since=self.sessions.clock.now() - shortage.waited,
            gpus=len(shortage.cards),
            reason=Reason.NAP_WAITS.sentence(card=card.name or card.uuid, **facts),
        )

    def _note_places(self, found: list[Waiting]) -> None:
        places = {each.key: each for each in found if each.key is not None}
        for key in places:
            self.sessions.runtime(key)
        for key, runtime in list(self.sessions.runtimes.items()):
            before, runtime.waiting = runtime.waiting, places.get(key)
            now = runtime.waiting
            if (before and before.place) != (now and now.place):
                self.sessions.touch(key)

    def may_try(self, row: SessionRow) -> bool:
        """Whether a placed resume may look for memory now.

        Only the first in the queue, so that large needs are not overtaken for ever.
        """
        if not self.sessions.settings.gpu_wait:
            return True
        if row.waiting_since is None:
            if not self.sessions.gpus_of(row) or not self._waiting_rows():
                return True
            self._join(row)
            return False
        first = self.refresh()[0]
        return first.key == row.key

    def waits(self, row: SessionRow, failure: Failure) -> bool:
        """Whether a failed try is repeated; if so, the session waits from now on."""
        if (
            not no_room(failure)
            or not self.sessions.settings.gpu_wait
            or self.over(row) is not None
        ):
            return False
        if row.waiting_since is None:
            self._join(row)
        return True

    def over(self, row: SessionRow) -> Failure | None:
        since, limit = row.waiting_since, self.sessions.settings.gpu_wait
        if since is None or self.sessions.clock.now() - since < limit:
            return None
        return failure_of(Reason.GPU_WAIT_OVER, limit=duration(limit))

    def told(self, row: SessionRow, failure: Failure) -> Failure:
        return (no_room(failure) and self.over(row)) or failure

    def served(self, row: SessionRow) -> Event:
        waited = self.sessions.clock.now() - (row.waiting_since or 0.0)
        step = Step(step=STEP, title="A GPU is free", state="done", seconds=waited)
        return Event(step=step)

    def _join(self, row: SessionRow) -> None:
        now = self.sessions.clock.now()
        line = self.sessions.audit_line(row.key, "gpu-reclaim", "waits for a GPU")
        self.sessions.update(row.key, line, waiting_since=now)
        self.refresh()

    def _waiting(self, row: SessionRow) -> Waiting:
        return Waiting(
            key=row.key,
            since=row.waiting_since or 0.0,
            gpus=max(1, len(self.sessions.gpus_of(row))),
            reason="No GPU of this machine has enough free memory.",
        )

    def _waiting_rows(self) -> list[SessionRow]:
        return [
            row
            for row in self.sessions.journal.sessions()
            if row.waiting_since is not None and row.phase is Phase.RESUMING
        ]

    def _gpu_holders(self) -> Counter[str]:
        rows = self.sessions.journal.sessions()
        live = (row for row in rows if row.phase in LIVE)
        return Counter(row.key.user for row in live if self.sessions.gpus_of(row))

    def _tell_places(self, order: list[SessionKey], total: int) -> None:
        texts = {
            key: f"Waiting for a free GPU: number {place} of {total} in the queue"
            for place, key in enumerate(order, start=1)
        }
        for key, runtime in list(self.sessions.runtimes.items()):
            before, runtime.place_told = runtime.place_told, texts.get(key, "")
            if runtime.place_told not in {"", before}:
                step = Step(step=STEP, title=runtime.place_told, state="going")
                self.sessions.step(key, "resume", Event(step=step))

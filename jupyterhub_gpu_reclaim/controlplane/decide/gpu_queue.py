"""The GPU queue: which sessions wait for a GPU, and whose turn it is.

There are three kinds of waiting. On one machine a resume has its place and lacks GPU
memory: it has tried, and the order is decided here, by when they began. On
Kubernetes a pod waits for a node: its scheduler decides, and this module only reports.
A session that wakes waits for memory of its own card: its agent decides, by the same
order, and this module reports its place among those who want that card.

Who goes for those who wait is recomputed on every tick from the queue and the GPUs that
are already being released. A selected session is ``wanted``; it is then judged, warned
and confirmed like any other. The count of GPUs freed for a session, and the time that
it has waited, are only in memory: after a restart of the service they begin again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.fair_order import fair
from jupyterhub_gpu_reclaim.common.models import Event, Failure, Phase, Step, Waiting
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane.decide.sampler import snapshot_of
from jupyterhub_gpu_reclaim.controlplane.session import LIVE, failure_of
from jupyterhub_gpu_reclaim.controlplane.settle import no_room
from jupyterhub_gpu_reclaim.policy.pressure import Want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import SessionKey, Shortage
    from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
    from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot

    #: Selects the sessions that go, and for whom, in the order of the wants; pure.
    Choose = Callable[
        [Iterable[SessionSnapshot], list[Want], float], Mapping[SessionKey, SessionKey]
    ]


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
        since = ((key, row.since) for key, row in rows.items())
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
        places = {each.key: each for each in found}
        for key in {*places, *self.sessions.runtimes}:
            self.sessions.note_waiting(key, places.get(key))
        return found

    def wakes(self) -> list[tuple[SessionRow, Shortage]]:
        sessions, now = self.sessions, self.sessions.clock.monotonic()
        found: list[tuple[SessionRow, Shortage]] = []
        for key, runtime in list(sessions.runtimes.items()):
            if runtime.napping is None:
                continue
            row = sessions.row(key)
            shortage = runtime.shortage
            heard = now - runtime.napping_seen < _OLD
            if shortage is not None and heard and row.phase in LIVE:
                found.append((row, shortage))
        return sorted(found, key=lambda one: (one[1].place, -one[1].waited, one[0].key))

    def _waking(self, row: SessionRow, shortage: Shortage) -> Waiting:
        return Waiting(
            key=row.key,
            place=shortage.place,
            since=self.sessions.clock.now() - shortage.waited,
            gpus=len(shortage.cards),
        )

    def may_try(self, row: SessionRow) -> bool:
        """Whether a placed resume may look for memory now.

        Only the first in the queue, so that large needs are not overtaken for ever.
        """
        if not self.sessions.settings.gpu_wait:
            return True
        if self.sessions.runtime(row.key).lacks_memory_since is None:
            if not self.sessions.gpus_of(row) or not self._waiting_rows():
                return True
            self._join(row)
            return False
        first = self.refresh()[0]
        return first.key == row.key

    def ended(self, row: SessionRow, failure: Failure) -> Failure | None:
        """Return the failure that a failed try ends in; None: the session waits."""
        if not no_room(failure):
            return failure
        over = self.over(row)
        if over is not None or not self.sessions.settings.gpu_wait:
            return over or failure
        if self.sessions.runtime(row.key).lacks_memory_since is None:
            self._join(row)
        return None

    def over(self, row: SessionRow) -> Failure | None:
        since = self.sessions.runtime(row.key).lacks_memory_since
        limit = self.sessions.settings.gpu_wait
        if since is None or self.sessions.clock.now() - since < limit:
            return None
        return failure_of(Reason.GPU_WAIT_OVER, limit=duration(limit))

    def served(self, row: SessionRow) -> Event:
        waited = self.sessions.clock.now() - row.since
        step = Step(step=STEP, title="A GPU is free", state="done", seconds=waited)
        return Event(step=step)

    def _join(self, row: SessionRow) -> None:
        now = self.sessions.clock.now()
        self.sessions.runtime(row.key).lacks_memory_since = now
        line = self.sessions.audit_line(row.key, "gpu-reclaim", "waits for a GPU")
        self.sessions.update(row.key, line)
        self.refresh()

    def _waiting(self, row: SessionRow) -> Waiting:
        return Waiting(
            key=row.key,
            since=row.since,
            gpus=max(1, len(self.sessions.gpus_of(row))),
        )

    def _waiting_rows(self) -> list[SessionRow]:
        return [
            row
            for row in self.sessions.journal.sessions()
            if row.phase is Phase.RESUMING
            and self.sessions.runtime(row.key).lacks_memory_since is not None
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


#: Seconds for a freed GPU to reach a waiting session. If a session still waits although
#: enough was freed for it, nothing more is freed for that long, doubled each time: it
#: lacks something else, or others are quicker.
SETTLE = 60.0
_GOING = {Phase.SUSPENDING, Phase.RELEASING}


@dataclass(eq=False)
class Preemption:
    sessions: Sessions
    choose: Choose
    together: Together

    def select(self, waiting: list[Waiting]) -> None:
        sessions, now = self.sessions, self.sessions.clock.now()
        self._count(now, {each.key for each in waiting})
        wants = self._wants(waiting, now)
        rows = [row for row in sessions.journal.sessions() if row.phase in LIVE]
        snapshots = (
            snapshot_of(sessions, row)
            for row in rows
            if self.together.against(row, now, len(waiting)) is None
        )
        chosen = self.choose(snapshots, wants, now) if wants else {}
        for key, runtime in sessions.runtimes.items():
            runtime.wanted = len(waiting) if key in chosen else 0
            if key in chosen:
                runtime.goes_for = chosen[key]
            elif runtime.goes_for and sessions.row(key).phase not in _GOING:
                runtime.goes_for = None

    def _count(self, now: float, waiting: set[SessionKey]) -> None:
        sessions = self.sessions
        for key, runtime in list(sessions.runtimes.items()):
            whom, row = runtime.goes_for, self.sessions.row(key)
            if whom is not None and row.phase is Phase.SUSPENDED:
                waiter = self.sessions.runtime(whom)
                waiter.freed = waiter.freed[0] + len(sessions.gpus_of(row)), now
                runtime.goes_for = None
        for key, runtime in self.sessions.runtimes.items():
            if key not in waiting:
                runtime.freed = (0, 0.0)

    def _wants(self, waiting: list[Waiting], now: float) -> list[Want]:
        """Return what is still lacking when everything under way has come free."""
        rows = self.sessions.journal.sessions()
        going = (row for row in rows if self._comes_free(row, now))
        coming = sum(len(self.sessions.gpus_of(row)) for row in going)
        coming += sum(self._idle_anyway(row) for row in rows)
        wants: list[Want] = []
        in_place = False
        for each in waiting:
            row = self.sessions.row(each.key)
            if row.phase in LIVE:
                continue  # it wakes: others nap for it
            # Of those who share a machine's GPUs the first alone may try, and how much
            # it finds is seen when it does: one session goes at a time.
            shares = self.sessions.runtime(each.key).lacks_memory_since is not None
            if shares and in_place:
                continue
            in_place = in_place or shares
            needed = 1 if shares else each.gpus
            lacking = needed - min(coming, needed)
            coming -= needed - lacking
            if lacking and not self._awaits_effect(each.key, needed, now):
                held = self.sessions.gpus_of(row)
                name = held[0].name if held else ""
                wants.append(Want(key=each.key, gpus=lacking, gpu=name))
        return wants

    def _awaits_effect(self, key: SessionKey, needed: int, now: float) -> bool:
        freed, at = self.sessions.runtime(key).freed
        rounds = min(freed // needed, 16)
        return rounds > 0 and now - at < SETTLE * 2.0 ** (rounds - 1)

    @staticmethod
    def _comes_free(row: SessionRow, now: float) -> bool:
        just_now = row.phase is Phase.SUSPENDED and now - row.since < SETTLE
        return row.phase in _GOING or just_now

    def _idle_anyway(self, row: SessionRow) -> int:
        runtime = self.sessions.runtime(row.key)
        if runtime.phase(row) is not Phase.WARNED or runtime.wanted:
            return 0
        return len(runtime.cards)

"""Totals of all sessions: GPUs in use, idle and freed, now and over the last weeks.

A line is written to the journal every few minutes. The numbers are for people: nothing
is decided by them. A crash loses the line of the minutes in which it happened, and no
other.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import select

from jupyterhub_gpu_reclaim.common import codec, decoders
from jupyterhub_gpu_reclaim.common.models import Phase, Value
from jupyterhub_gpu_reclaim.controlplane.journal import schema
from jupyterhub_gpu_reclaim.controlplane.model import accounting
from jupyterhub_gpu_reclaim.controlplane.model.accounting import GpuCount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.common.models import GpuSample
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: Seconds between two lines of the journal.
STEP = 300
#: Seconds for which lines are kept: a month.
KEPT = 31 * 86400
#: Most points of one answer; the lines between them are left out.
MOST_POINTS = 300
#: Percent of a card from which it is at work (``IdlePolicy.busy_gpu_percent``).
WORKING_PERCENT = 5.0
#: Seconds since it was last seen after which a card is not known any more.
_SEEN = 86400.0


class Point(Value, frozen=True, kw_only=True):
    """The totals of one moment. A MIG instance counts as a GPU of its own."""

    at: float
    gpus_known: int = 0  #: seen with a session in the last day
    gpus_in_use: int = 0  #: held by a session that works, or of which nothing is known
    gpus_idle: int = 0  #: held by sessions that do nothing with them
    #: held before by sessions that are suspended now; shared ones by their share
    gpus_freed: int = 0
    waiting: int = 0  #: sessions that wait for a GPU
    sessions: dict[str, int] = msgspec.field(default_factory=dict)  #: by phase


class Totals(Value, frozen=True, kw_only=True):
    """The totals of now and of the past."""

    now: Point
    step: float  #: seconds between two points; a longer distance is a gap
    points: list[Point]  #: the oldest first
    gpu_seconds_freed: float  #: summed up over the points
    gpu_seconds_reclaimed: float = 0.0  #: since the service was first started


class StoreUse(Value, frozen=True, kw_only=True):
    """Size of one user's checkpoints."""

    user: str
    checkpoints: int
    logical_bytes: int  #: size of the sessions' contents
    stored_bytes: int  #: bytes written for them


class _Sizes(Value, frozen=True, kw_only=True):
    logical_bytes: int = 0
    stored_bytes: int = 0


class TotalsLog:
    """Counts the totals, and writes lines to the journal.

    Args:
        sessions: where journal, clock and runtime state are.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._written: float | None = None
        self._seen: dict[tuple[str, int | None], float] = {}

    def now(self) -> Point:
        """Return the totals of this moment."""
        at = self._sessions.clock.now()
        rows = self._sessions.journal.sessions()
        held = self._cards_held(rows)
        self._seen.update(dict.fromkeys(held, at))
        self._seen = {card: s for card, s in self._seen.items() if at - s <= _SEEN}
        working = sum(held.values())
        freed = sum(r.gpus for r in rows if r.phase is Phase.SUSPENDED)
        return Point(
            at=at,
            gpus_known=len(self._seen),
            gpus_in_use=working,
            gpus_idle=len(held) - working,
            gpus_freed=round(freed / self._sessions.seats_per_gpu),
            waiting=self._sessions.waiting(),
            sessions=dict(Counter(row.phase.value for row in rows)),
        )

    def _cards_held(self, rows: list[SessionRow]) -> dict[tuple[str, int | None], bool]:
        """Return the cards that sessions hold, and whether any of them works."""
        held: dict[tuple[str, int | None], bool] = {}
        for row, card in self._cards(rows):
            name = (card.uuid, card.instance)
            held[name] = held.get(name, False) or self._is_at_work(row)
        return held

    def gpus(self) -> list[GpuCount]:
        """Return the GPUs by node, model and state, at this moment."""
        now = self._sessions.clock.now()
        rows = self._sessions.journal.sessions()
        states: dict[tuple[str, int | None], tuple[str, str, str]] = {}
        for row, card in self._cards(rows):
            name = (card.uuid, card.instance)
            state = accounting.KEPT if accounting.is_kept(row, now) else accounting.IDLE
            state = accounting.IN_USE if self._is_at_work(row) else state
            _, _, before = states.get(name, ("", "", state))
            # One that works is enough, and so is one that is kept.
            state = min(state, before, key=accounting.GPU_STATES.index)
            states[name] = (row.node, card.name, state)
        found: dict[tuple[str, str, str], float] = dict(Counter(states.values()))
        for row in rows:
            if row.phase is Phase.SUSPENDED and row.gpus:
                kind = (row.node, row.gpu_name, accounting.FREED)
                share = row.gpus / self._sessions.seats_per_gpu
                found[kind] = found.get(kind, 0.0) + share
        return [GpuCount(*kind, found[kind]) for kind in sorted(found)]

    def _cards(self, rows: list[SessionRow]) -> Iterator[tuple[SessionRow, GpuSample]]:
        """Yield each card that a session holds, with that session."""
        for row in rows:
            if row.phase not in {Phase.SUSPENDED, Phase.STOPPED}:
                for card in self._sessions.runtime(row.key).cards(row.incarnation):
                    yield row, card

    def _is_at_work(self, row: SessionRow) -> bool:
        """Whether a session uses its cards, or nothing is known of that."""
        usage = self._sessions.runtime(row.key).usage
        percent = usage.gpu_percent if usage is not None else None
        return percent is None or percent >= WORKING_PERCENT

    def note(self) -> None:
        """Write a line when one is due, and drop those that are too old.

        Raises:
            StoreError: the journal could not be written; the line is due at the next
                call.
        """
        now = self._sessions.clock.now()
        at = int(now // STEP) * STEP
        if self._written == at:
            return
        table = schema.totals
        values = msgspec.structs.asdict(self.now())
        values.update(at=at, sessions=codec.encode(values["sessions"]).decode())
        self._sessions.journal.write(
            table.delete().where((table.c.at == at) | (table.c.at < at - KEPT)),
            table.insert().values(**values),
        )
        self._written = at

    def since(self, hours: int) -> Totals:
        """Return the present, and the last hours in at most ``MOST_POINTS`` points."""
        now = self.now()
        step = STEP * -(-hours * 3600 // (STEP * MOST_POINTS))
        table = schema.totals
        query = table.select().order_by(table.c.at)
        query = query.where(table.c.at > now.at - hours * 3600, table.c.at % step == 0)
        points = [_point(row) for row in self._sessions.journal.read(query)]
        freed = step * sum(point.gpus_freed for point in points)
        journal = self._sessions.journal
        counted = journal.amount(accounting.GPU_SECONDS)
        return Totals(
            now=now,
            step=step,
            points=points,
            gpu_seconds_freed=freed,
            gpu_seconds_reclaimed=accounting.so_far(
                journal.sessions(), counted, now.at, self._sessions.seats_per_gpu
            ),
        )

    def store_use(self) -> list[StoreUse]:
        """Return the size of each user's checkpoints, the largest first."""
        table = schema.checkpoints
        sums: dict[str, list[int]] = {}
        for row in self._sessions.journal.read(select(table.c.user, table.c.info)):
            sizes = codec.decode(row["info"], _Sizes) if row["info"] else _Sizes()
            mine = sums.setdefault(row["user"], [0, 0, 0])
            mine[0] += 1
            mine[1] += sizes.logical_bytes
            mine[2] += sizes.stored_bytes
        uses = [
            StoreUse(user=user, checkpoints=n, logical_bytes=logical, stored_bytes=s)
            for user, (n, logical, s) in sums.items()
        ]
        return sorted(uses, key=lambda use: (-use.stored_bytes, use.user))


def _point(row: dict[Any, Any]) -> Point:
    values = {str(name): value for name, value in row.items()}
    values["sessions"] = codec.decode(values["sessions"], dict[str, int])
    return decoders.convert(values, Point, strict=False)

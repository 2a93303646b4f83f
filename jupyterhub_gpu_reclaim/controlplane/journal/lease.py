"""The right to work on a journal, which one service at a time holds.

Two services on one journal, after a rolling update for example, would each undo what
the other has done. The right is a row of the database. Its holder renews it, every
write of the journal checks it in the same transaction, and every order to an agent or
to the Hub renews it first, so that a service that was paused (SIGSTOP, a suspended
virtual machine) notices before it acts. A waiting service takes it when the holder has
given it back, has provably ended, or has not renewed it for the time that it promised.
That is measured on the waiting service's own monotonic clock; no two machines' clocks
are compared.

The term grows with each holder: it is a fencing number, which agents check as well
(``common/term.py``). So an order that is late finds that it is a former service's.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from sqlalchemy import and_, bindparam

from jupyterhub_gpu_reclaim.common import codec, decoders
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.models import BELIEVED, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.term import Term
from jupyterhub_gpu_reclaim.controlplane.journal import schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent, Hub


_log = logging.getLogger(__name__)

#: Seconds without a sign of life of the service that works on the journal until another
#: one may take its place. One that is paused for longer stops working, and waits.
LEASE_SECONDS = 15.0
#: Renewals in the time that a lease lasts; also the polls of a service that waits.
RENEWALS = 5
#: Most seconds between two of those polls: how long a clean restart takes.
LOOK_SECONDS = 0.5


#: The statement of a renewal, made once: each write runs it, and composing it is slow.
_RENEWAL = (
    schema.lease.update()
    .where(
        schema.lease.c.holder == bindparam("its_holder"),
        schema.lease.c.term == bindparam("its_term"),
    )
    .values(beat=schema.lease.c.beat + 1)
)


class LeaseHolder(Value, frozen=True, kw_only=True):
    """The program that holds the lease, for the log and to see whether it has ended."""

    host: str = ""
    boot: str = ""  #: id of its kernel's boot
    pids: int = 0  #: number of the pid namespace that it runs in
    pid: int = 0
    start: int = 0  #: start of the process, in clock ticks after boot

    @classmethod
    def here(cls) -> LeaseHolder:
        """Return the holder that is this program."""
        return cls(
            host=socket.gethostname(),
            boot=_boot(),
            pids=Path("/proc/self/ns/pid").stat().st_ino,
            pid=os.getpid(),
            start=_start_time(os.getpid()),
        )

    def has_ended(self) -> bool:
        """Whether the holder's program has certainly ended.

        Only a program in the same pid namespace can be seen to be gone.
        """
        here = LeaseHolder.here()
        if not self.pid or (self.boot, self.pids) != (here.boot, here.pids):
            return False
        return _start_time(self.pid) != self.start


class _Seen(NamedTuple):
    """The row as a waiting service has read it."""

    holder: str
    term: int
    beat: int
    seconds: float
    place: str


class Lease:
    """This service's share in the journal.

    Args:
        journal: the journal that the lease is for.
        clock: for waiting, and for how long the holder has been still.
        seconds: time without a renewal after which others may take the lease.
        place: this program.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        seconds: float,
        place: LeaseHolder | None = None,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._seconds = seconds
        self._place = place or LeaseHolder.here()
        self._name = uuid.uuid4().hex
        self._term = 0
        self._still: tuple[_Seen, float] | None = None

    @property
    def term(self) -> int:
        """The fencing number; 0 if the lease was never held."""
        return self._term

    # --- getting it
    def take(self) -> bool:
        """Take the lease if it is free; return whether it is held now. Idempotent.

        Raises:
            StoreError: the database does not answer.
        """
        seen = self._read_row()
        if seen.holder == self._name:
            return True
        if not self._is_free(seen):
            return False
        table = schema.lease
        same = and_(
            table.c.holder == seen.holder,
            table.c.term == seen.term,
            table.c.beat == seen.beat,
        )
        mine = {
            "holder": self._name,
            "term": seen.term + 1,
            "beat": 0,
            "seconds": self._seconds,
            "place": codec.encode(self._place).decode(),
        }
        with self._journal.transaction() as connection:
            taken = connection.execute(table.update().where(same).values(**mine))
        if taken.rowcount != 1:
            return False
        self._term = seen.term + 1
        self._still = None
        self._journal.lease = self
        return True

    async def acquire(self, waits: Callable[[], None]) -> None:
        """Wait until the lease is held.

        Args:
            waits: called when another service turns out to hold it.
        """
        reported = ""
        while not self._try():
            if reported != self.holder:
                reported = self.holder
                waits()
                _log.warning(
                    "service: another one holds the journal (%s); waiting until it"
                    " gives it back or is gone",
                    reported,
                )
            await self._clock.sleep(min(LOOK_SECONDS, self._seconds / RENEWALS))
        _log.info("service: holds the journal (term %d)", self._term)

    def _try(self) -> bool:
        try:
            return self.take()
        except ReclaimError as error:
            _log.warning("service: the journal does not answer: %s", error)
            return False

    @property
    def holder(self) -> str:
        """The last holder that was seen, for the log."""
        seen = self._still[0] if self._still is not None else None
        place = _decode_place(seen.place) if seen is not None else LeaseHolder()
        return f"process {place.pid} on {place.host}" if place.pid else "not known"

    def _read_row(self) -> _Seen:
        """Read the row, and note since when it has not changed."""
        row = self._journal.read(schema.lease.select())[0]
        seen = _Seen(**{name: row[name] for name in _Seen._fields})
        if self._still is None or self._still[0] != seen:
            self._still = seen, self._clock.monotonic()
        return seen

    def _is_free(self, seen: _Seen) -> bool:
        if not seen.holder or _decode_place(seen.place).has_ended():
            return True
        since = self._still[1] if self._still is not None else 0.0
        return self._clock.monotonic() - since >= seen.seconds

    # --- having it
    @property
    def stamp(self) -> Term:
        """The term, as each request to an agent carries it."""
        return Term(number=self._term, holder=self._name)

    def rise(self, above: int) -> None:
        """Raise the term above one that agents or store know, of whatever journal.

        A term that no service can have had is not believed: the next holder's would be
        higher than the journal and the agents take.

        Pending orders to delete from the former term get the new one: they were given
        before anything of the other journal was known, and cover that, too.

        Raises:
            Unreachable: ``journal_held``: another service has the lease.
            StoreError: the database does not answer.
        """
        if self._term > above:
            return
        if above > BELIEVED:
            _log.warning("service: no service had term %d; it is passed over", above)
            return
        with self._journal.transaction() as connection:
            self.hold(connection)
            connection.execute(schema.lease.update().values(term=above + 1))
            ordered = schema.deletions.c.term == self._term
            deletions = schema.deletions.update().where(ordered)
            connection.execute(deletions.values(term=above + 1))
        self._term = above + 1
        _log.info("service: term %d was known; ours is higher now", above)

    def hold(self, connection: Connection) -> None:
        """Lock the lease in this transaction: until its end no other can take it.

        Raises:
            Unreachable: ``journal_held``; the transaction must not go on.
        """
        mine = {"its_holder": self._name, "its_term": self._term}
        if connection.execute(_RENEWAL, mine).rowcount != 1:
            raise Unreachable(Reason.JOURNAL_HELD, detail=f"term {self._term} is over")

    def renew(self) -> None:
        """Lock the lease, and extend it to its full time from now.

        Raises:
            Unreachable: ``journal_held``: another service has it.
            StoreError: the database does not answer.
        """
        with self._journal.transaction() as connection:
            self.hold(connection)

    async def keep(self) -> None:
        """Renew the lease again and again; return when another service has it."""
        while True:
            await self._clock.sleep(self._seconds / RENEWALS)
            try:
                self.renew()
            except Unreachable:
                return
            except ReclaimError as error:
                _log.warning(
                    "service: the journal's lease could not be renewed: %s", error
                )

    def give_back(self) -> None:
        """Release the lease at once; nothing to do if it was lost or never held."""
        table = schema.lease
        mine = (table.c.holder == self._name) & (table.c.term == self._term)
        try:
            with self._journal.transaction() as connection:
                connection.execute(table.update().where(mine).values(holder=""))
        except ReclaimError as error:
            _log.warning(
                "service: the journal's lease could not be released: %s", error
            )


def _decode_place(text: str) -> LeaseHolder:
    """Read a holder's place; a newer release may say more, or nothing of use."""
    try:
        return decoders.json_decoder(LeaseHolder).decode(text)
    except msgspec.DecodeError:
        return LeaseHolder()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_time(pid: int) -> int:
    """Return when a process was started, in clock ticks after boot; 0: it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in {"Z", "X"} else int(fields[19])


class _Fenced:
    """Checks the lease before each order, and passes everything on."""

    _orders: frozenset[str]

    def __init__(self, target: Any, journal: Journal) -> None:
        self._target = target
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._target, name)
        if name not in self._orders:
            return call

        def order(*args: Any, **more: Any) -> Any:
            self._journal.check()
            return call(*args, **more)

        return order


class _FencedAgent(_Fenced):
    _orders = frozenset({"capture", "save", "restore", "nap", "wake", "thaw"})
    _orders |= {"release", "kill", "cancel", "discard", "lay_aside"}

    async def checkpoints(self, key: SessionKey | None = None) -> list[CheckpointInfo]:
        """Return the committed checkpoints; raise the term at least to theirs.

        The journal may be lost together with all that agents have kept of terms.
        """
        saved: list[CheckpointInfo] = await self._target.checkpoints(key)
        lease = self._journal.lease
        for term in sorted({info.term for info in saved}, reverse=True):
            if lease is not None and lease.term < term:
                lease.rise(term)
        return saved


class _FencedHub(_Fenced):
    _orders = frozenset({"stop", "start"})


def fenced_agent(agent: Agent, journal: Journal) -> Agent:
    """Wrap the agent so that its orders need the lease.

    Questions pass through. Each order is first checked against the database, so that a
    paused service, whose journal another one has taken over meanwhile, gives none: not
    even to an agent that has not heard of the other one, or knows no terms.
    """
    return cast("Agent", _FencedAgent(agent, journal))


def fenced_hub(hub: Hub, journal: Journal) -> Hub:
    """Wrap the Hub likewise."""
    return cast("Hub", _FencedHub(hub, journal))

"""Room on this machine's cards: what is promised to whom, and who wakes and waits.

A driver that runs out of memory midway loses the process, so memory is promised before
it is filled. Promises are in memory only: an agent that starts has none.

Wakes that wait are served in a fair order (``common.fair_order``). One that waits goes
before those that come later, for its first minute: by then others have been put to nap
for it if they may be. Afterwards it does so only if it fits, so that one with large
needs holds nobody up for ever.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common.fair_order import fair
from jupyterhub_gpu_reclaim.common.models import CardShortage, Shortage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.sampling.gpu import CardUse

#: Seconds for which one that waits goes first.
HEAD_START: Final = 60.0
#: Seconds without another try after which a session does not wait any more.
_LEFT_AFTER: Final = 10.0


@dataclass
class _Waiting:
    key: SessionKey
    since: float  #: of a clock that never goes back
    seen: float  #: when it last asked
    needed: Mapping[str, int]
    place: int
    short: list[CardShortage]


class CardRoom:
    """Promises of memory, and those who wait for one."""

    def __init__(self) -> None:
        self._promised: dict[object, Counter[str]] = {}
        self._waiting: dict[str, _Waiting] = {}
        #: wakes of each user that were served since somebody waits
        self._served: Counter[str] = Counter()
        self._lock = threading.Lock()

    def promise(
        self,
        claim: object,
        needed: Mapping[str, int],
        cards: Sequence[CardUse],
        now: float,
        waker: Session | None = None,
    ) -> Shortage | None:
        """Keep room for a claim, or say on which cards it is short."""
        # What others are about to fill is not free, and for seconds some counts twice.
        # A session without a ``waker`` goes on with what it had; it takes what is free.
        with self._lock:
            self._forget_those_who_left(now)
            mine = self._waiting.get(waker.incarnation) if waker else None
            since = mine.since if mine is not None else now
            short = self._short(needed, cards)
            ahead = self._ahead(waker, since, needed, cards, now) if waker else 0
            if not short and not ahead:
                self._promised[claim] = Counter(needed)
                if waker is not None:
                    self._waiting.pop(waker.incarnation, None)
                    self._served[waker.key.user] += 1
                return None
            place = ahead + 1
            if not short:  # it waits for its turn
                short = [
                    _shortage(card, needed[card.uuid], card.free or 0)
                    for card in cards
                    if needed.get(card.uuid)
                ]
            if waker is not None:
                waiting = _Waiting(waker.key, since, now, needed, place, short)
                self._waiting[waker.incarnation] = waiting
            return Shortage(waited=now - since, place=place, cards=short)

    def release(self, claim: object) -> None:
        """Drop a claim, whose memory is filled, or will not be; idempotent."""
        with self._lock:
            self._promised.pop(claim, None)

    def leave(self, incarnation: str) -> None:
        """Take a session out of the queue; idempotent."""
        with self._lock:
            self._waiting.pop(incarnation, None)

    def shortage_of(self, incarnation: str, now: float) -> Shortage | None:
        """What it was told last; None: it does not wait."""
        with self._lock:
            self._forget_those_who_left(now)
            mine = self._waiting.get(incarnation)
            if mine is None:
                return None
            waited = now - mine.since
            return Shortage(waited=waited, place=mine.place, cards=mine.short)

    def _short(
        self, needed: Mapping[str, int], cards: Sequence[CardUse]
    ) -> list[CardShortage]:
        """The cards that have not enough; one that does not tell is tried."""
        promised = sum(self._promised.values(), Counter[str]())
        found = []
        for card in cards:
            count = needed.get(card.uuid, 0)
            if not count or card.free is None:
                continue
            free = max(0, card.free - promised[card.uuid])
            if free < count:
                found.append(_shortage(card, count, free))
        return found

    def _ahead(
        self,
        waker: Session,
        since: float,
        needed: Mapping[str, int],
        cards: Sequence[CardUse],
        now: float,
    ) -> int:
        def counts(each: _Waiting) -> bool:
            if not needed.keys() & each.needed.keys():
                return False
            young = now - each.since < HEAD_START
            return young or not self._short(each.needed, cards)

        queue = [(since, waker.key, waker.incarnation)]
        queue += [
            (each.since, each.key, name)
            for name, each in self._waiting.items()
            if name != waker.incarnation and counts(each)
        ]
        by_key: dict[SessionKey, list[str]] = {}
        for _, key, name in sorted(queue):
            by_key.setdefault(key, []).append(name)
        served = fair(((key, at) for at, key, _ in queue), self._served)
        return [by_key[key].pop(0) for key in served].index(waker.incarnation)

    def _forget_those_who_left(self, now: float) -> None:
        for name, each in list(self._waiting.items()):
            if now - each.seen > _LEFT_AFTER:
                del self._waiting[name]
        if not self._waiting:
            self._served.clear()


def _shortage(card: CardUse, needed: int, free: int) -> CardShortage:
    return CardShortage(uuid=card.uuid, name=card.name, needed=needed, free=free)

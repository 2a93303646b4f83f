"""GPU use of each session in the last hour, minute by minute, in memory.

No decision depends on it. It is bounded (an hour, one number a minute) and begins empty
with the program: only pages and totals read it, and a minute without a sample stays
unknown.
"""

from __future__ import annotations

from array import array
from math import isnan, nan

from jupyterhub_gpu_reclaim.common.models import GpuSample, Sample, SessionKey, Value

MINUTES = 60
_MINUTE = 60.0
_UNKNOWN = nan


class Line(Value, frozen=True, kw_only=True):
    """The last hour of one session; in the lists the newest value is the last one."""

    key: SessionKey
    end: float  #: of the last value's minute, seconds since the epoch
    step: float = _MINUTE  #: seconds from one value to the next
    #: of its busiest card, as the minute's mean; null: no card used, or not known
    gpu_percent: list[float | None]
    memory: list[int | None]  #: bytes held on all cards, at the minute's end


class GpuHistory:
    """The last hour of one session, as a ring of minutes.

    Args:
        minute: number of its first minute since the epoch.
    """

    __slots__ = ("_cards", "_incarnation", "_memory", "_percent", "_samples", "minute")

    def __init__(self, minute: int) -> None:
        self.minute = minute  #: number of the newest minute
        self._samples = 0  # of this minute, with a percentage
        self._percent = array("f", [_UNKNOWN] * MINUTES)
        self._memory = array("d", [_UNKNOWN] * MINUTES)
        self._incarnation = ""
        self._cards: list[GpuSample] = []

    def add(self, sample: Sample) -> None:
        """Take a sample; one older than the newest minute is left out."""
        minute = int(sample.at // _MINUTE)
        if minute < self.minute:
            return
        self._turn_to(minute)
        self._incarnation, self._cards = sample.incarnation, sample.gpus or []
        if sample.gpus:
            self._add_to_newest(_busiest(sample.gpus), _held(sample.gpus))

    def cards_of(self, incarnation: str) -> list[GpuSample]:
        """Return the cards last seen with an incarnation; empty if not known."""
        return self._cards if self._incarnation == incarnation else []

    def line(self, key: SessionKey, now: float) -> Line:
        """Return the hour up to now, as pages show it."""
        minute = int(now // _MINUTE)
        percent = self._values(self._percent, minute)
        memory = self._values(self._memory, minute)
        return Line(
            key=key,
            end=(minute + 1) * _MINUTE,
            gpu_percent=[None if isnan(p) else round(p, 1) for p in percent],
            memory=[None if isnan(m) else int(m) for m in memory],
        )

    def is_over(self, now: float) -> bool:
        """Whether there was no sample for an hour."""
        return self.minute < int(now // _MINUTE) - MINUTES

    def _turn_to(self, minute: int) -> None:
        """Empty the places of the minutes that have begun since."""
        for passed in range(self.minute + 1, min(minute, self.minute + MINUTES) + 1):
            self._percent[passed % MINUTES] = _UNKNOWN
            self._memory[passed % MINUTES] = _UNKNOWN
        if minute > self.minute:
            self.minute, self._samples = minute, 0

    def _add_to_newest(self, percent: float | None, memory: int | None) -> None:
        """Take a sample into the newest minute."""
        place = self.minute % MINUTES
        if percent is not None:
            before = self._percent[place] if self._samples else 0.0
            self._samples += 1
            self._percent[place] = before + (percent - before) / self._samples
        self._memory[place] = _UNKNOWN if memory is None else float(memory)

    def _values(self, ring: array[float], minute: int) -> list[float]:
        """Return the hour up to that minute, the newest last; NaN: not known."""
        oldest = (self.minute + 1) % MINUTES
        whole = list(ring[oldest:]) + list(ring[:oldest])
        since = min(max(minute - self.minute, 0), MINUTES)
        return whole[since:] + [_UNKNOWN] * since


def added(history: GpuHistory | None, sample: Sample) -> GpuHistory:
    """Return the history with one more sample; a new one if the clock was put back."""
    minute = int(sample.at // _MINUTE)
    if history is None or history.minute - minute > MINUTES:
        history = GpuHistory(minute)
    history.add(sample)
    return history


def _busiest(cards: list[GpuSample]) -> float | None:
    shares = [card.sm_percent for card in cards]
    known = [share for share in shares if share is not None]
    return max(known) if known and len(known) == len(shares) else None


def _held(cards: list[GpuSample]) -> int | None:
    held = [card.memory for card in cards]
    known = [size for size in held if size is not None]
    return sum(known) if len(known) == len(held) else None

"""GPU use of each session in the last hour, minute by minute, in memory.

It decides nothing, is bounded (an hour, one number a minute) and begins empty with the
program: only pages and totals read it, and a minute without a sample stays unknown.
"""

from __future__ import annotations

from array import array
from math import isnan, nan

from jupyterhub_gpu_reclaim.common.models import GpuSample, Sample, SessionKey, Value

MINUTES = 60
_MINUTE = 60.0
_UNKNOWN = nan


class Line(Value, frozen=True, kw_only=True):
    """One session's last hour; in the lists the newest value is the last one."""

    key: SessionKey
    end: float  #: of the last value's minute, seconds since the epoch
    step: float = _MINUTE  #: seconds from one value to the next
    #: of its busiest card, as the minute's mean; null: no card used, or not known
    gpu_percent: list[float | None]
    memory: list[int | None]  #: bytes held on all cards, at the minute's end


class _Track:
    """The ring of one session's minutes."""

    __slots__ = ("cards", "incarnation", "looks", "memory", "minute", "percent")

    def __init__(self, minute: int) -> None:
        self.minute = minute
        self.looks = 0  # of this minute, with a percentage
        self.percent = array("f", [_UNKNOWN] * MINUTES)
        self.memory = array("d", [_UNKNOWN] * MINUTES)
        self.incarnation = ""
        self.cards: list[GpuSample] | None = []

    def turn_to(self, minute: int) -> None:
        """Empty the places of the minutes that have begun since."""
        for passed in range(self.minute + 1, min(minute, self.minute + MINUTES) + 1):
            self.percent[passed % MINUTES] = _UNKNOWN
            self.memory[passed % MINUTES] = _UNKNOWN
        if minute > self.minute:
            self.minute, self.looks = minute, 0

    def see(self, percent: float | None, memory: int | None) -> None:
        """Take one sample into the newest minute."""
        place = self.minute % MINUTES
        if percent is not None:
            before = self.percent[place] if self.looks else 0.0
            self.looks += 1
            self.percent[place] = before + (percent - before) / self.looks
        self.memory[place] = _UNKNOWN if memory is None else float(memory)

    def values(self, ring: array[float], minute: int) -> list[float]:
        """The hour up to that minute, the newest last; NaN where nothing is known."""
        oldest = (self.minute + 1) % MINUTES
        whole = list(ring[oldest:]) + list(ring[:oldest])
        since = min(max(minute - self.minute, 0), MINUTES)
        return whole[since:] + [_UNKNOWN] * since


class History:
    """The last hour of all sessions."""

    def __init__(self) -> None:
        self._tracks: dict[SessionKey, _Track] = {}

    def add(self, key: SessionKey, sample: Sample) -> None:
        """Take one sample; one that is older than the newest minute is left out."""
        minute = int(sample.at // _MINUTE)
        track = self._tracks.get(key)
        if track is None or track.minute - minute > MINUTES:  # the clock was put back
            track = self._tracks[key] = _Track(minute)
        if minute < track.minute:
            return
        track.turn_to(minute)
        track.incarnation, track.cards = sample.incarnation, sample.gpus
        if sample.gpus:
            track.see(_busiest(sample.gpus), _held(sample.gpus))

    def cards(self, key: SessionKey, incarnation: str) -> list[GpuSample]:
        """What that incarnation was last seen to hold; empty where it is not known."""
        track = self._tracks.get(key)
        if track is None or track.incarnation != incarnation:
            return []
        return track.cards or []

    def lines(self, keys: set[SessionKey], now: float) -> list[Line]:
        """The last hour of those that held a GPU in it, by user and server."""
        minute = int(now // _MINUTE)
        found = (self._line(key, minute) for key in sorted(keys & self._tracks.keys()))
        return [line for line in found if any(v is not None for v in line.gpu_percent)]

    def _line(self, key: SessionKey, minute: int) -> Line:
        track = self._tracks[key]
        percent = track.values(track.percent, minute)
        memory = track.values(track.memory, minute)
        return Line(
            key=key,
            end=(minute + 1) * _MINUTE,
            gpu_percent=[None if isnan(p) else round(p, 1) for p in percent],
            memory=[None if isnan(m) else int(m) for m in memory],
        )

    def prune(self, now: float) -> None:
        """Forget sessions without a sample for an hour."""
        oldest = int(now // _MINUTE) - MINUTES
        old = [key for key, each in self._tracks.items() if each.minute < oldest]
        for key in old:
            del self._tracks[key]

    def forget(self, key: SessionKey) -> None:
        """Forget a deleted session."""
        self._tracks.pop(key, None)


def _busiest(cards: list[GpuSample]) -> float | None:
    shares = [card.sm_percent for card in cards]
    known = [share for share in shares if share is not None]
    return max(known) if known and len(known) == len(shares) else None


def _held(cards: list[GpuSample]) -> int | None:
    held = [card.memory for card in cards]
    known = [size for size in held if size is not None]
    return sum(known) if len(known) == len(held) else None

"""The rate of a counter that is read now and then. Pure."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds of the last stretch, whose work counts however idle the window was before.
RECENT_SECONDS = 60.0
#: Shortest peak in seconds; what is shorter is as good as spread over it.
PEAK_SECONDS = 10.0
#: Seconds between two readings that are enough for a peak: they come not quite on time.
_NEARLY_SECONDS = 0.9 * PEAK_SECONDS
#: Rounding of the kernel's counters; a smaller step back is not a reset.
_ROUNDING = 0.05


class _Reading(NamedTuple):
    at: float
    work: float


class Meter:
    """A counter of work, such as seconds of a processor, read now and then.

    Averaged over ``span`` seconds; starts again after ``gap`` seconds without reading.
    """

    def __init__(self, span: float, gap: float) -> None:
        self._span = span
        self._gap = gap
        self._readings: list[_Reading] = []

    def clear(self) -> None:
        self._readings.clear()

    def add(self, at: float, work: float) -> None:
        """Add a reading; a counter that goes backwards is another one."""
        new = _Reading(at, work)
        if self._readings:
            last = self._readings[-1]
            backwards = work < last.work - _ROUNDING
            if backwards or at - last.at > self._gap:
                self._readings.clear()
        self._readings.append(new)
        # One reading beyond the span stays, so that the span is covered whole.
        while len(self._readings) > 2 and self._readings[1].at <= at - self._span:
            self._readings.pop(0)

    def add_share(self, at: float, percent: float) -> None:
        """Add a reading of a source that gives the share used since the last one."""
        last = self._readings[-1] if self._readings else _Reading(at, 0.0)
        self.add(at, last.work + percent / 100.0 * (at - last.at))

    def rate(self, span: float) -> float | None:
        """Work per second: the larger mean of that span and of the last minute."""
        if len(self._readings) < 2:
            return None
        last = self._readings[-1]
        since = (min(span, self._span), RECENT_SECONDS)
        return max(_rate(self._reading_before(seconds), last) for seconds in since)

    def peak(self, span: float) -> float | None:
        """Most work per second in `PEAK_SECONDS` of that span, or between readings."""
        if len(self._readings) < 2:
            return None
        since = self._readings[-1].at - span
        rates = (rate for at, rate in self._stretches() if at > since)
        return max(rates, default=0.0)

    def _stretches(self) -> Iterator[tuple[float, float]]:
        if self._readings[-1].work == self._readings[0].work:
            return  # as in most sessions at most times
        begin = 0
        for number, last in enumerate(self._readings[1:], 1):
            while (
                begin + 1 < number
                and self._readings[begin + 1].at <= last.at - _NEARLY_SECONDS
            ):
                begin += 1
            first = self._readings[begin]
            seconds = max(PEAK_SECONDS, last.at - first.at)
            yield last.at, max(0.0, (last.work - first.work) / seconds)

    def quiet_peak(self, span: float, stretch: float) -> float | None:
        """The peak of the quietest ``stretch`` seconds; None before two of them."""
        if not self._readings:
            return None
        until = self._readings[-1].at
        watched = min(span, until - self._readings[0].at)
        count = int(watched // stretch)
        if count < 2:
            return None
        most = [0.0] * count
        for at, rate in self._stretches():
            number = int((until - at) // stretch)
            if number < count:
                most[number] = max(most[number], rate)
        return min(most)

    def _reading_before(self, seconds: float) -> _Reading:
        """The newest reading older than the last by that much, or else the oldest."""
        last, history = self._readings[-1], self._readings
        end = bisect_right(
            history, last.at - seconds, hi=len(history) - 1, key=lambda one: one.at
        )
        return history[max(end - 1, 0)]


def _rate(first: _Reading, last: _Reading) -> float:
    return max(0.0, (last.work - first.work) / (last.at - first.at))

"""Rate limits by name, with a count of what was held back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

#: Names that are remembered before those with nothing to remember are dropped.
_NAMES = 1024


@dataclass
class Throttle:
    """For each name a number at once, then so many a minute."""

    at_once: int
    per_minute: float
    #: For each name what it has left, and when that was reckoned, in seconds.
    _left: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    _held: Counter[Hashable] = field(default_factory=Counter)
    _most: int = _NAMES

    def lets(self, name: Hashable, now: float) -> bool:
        """Whether it may happen ``now`` (of a clock that does not go back for long)."""
        if len(self._left) > self._most:
            self._forget(now)
        left = self._has(name, now)
        if left < 1:
            self._held[name] += 1
            return False
        self._left[name] = (left - 1, now)
        return True

    def held_back(self, name: Hashable) -> int:
        """How often that name was held back since the last call."""
        return self._held.pop(name, 0)

    def _has(self, name: Hashable, now: float) -> float:
        left, at = self._left.get(name, (self.at_once, now))
        return min(self.at_once, left + max(0.0, now - at) * self.per_minute / 60)

    def _forget(self, now: float) -> None:
        for name in list(self._left):
            if self._has(name, now) >= self.at_once:
                del self._left[name]
                self._held.pop(name, None)
        self._most = max(_NAMES, 2 * len(self._left))

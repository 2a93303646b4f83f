"""Kills parts of a stack at drawn moments, and starts again what nobody else would."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from demo.stack import Stack, StackError

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

#: What goes down together, and how often beside the others.
PARTS = {
    ("agent",): 4,
    ("service",): 4,
    ("proxy",): 2,
    ("hub",): 2,
    ("agent", "service"): 1,
    ("hub", "agent", "service", "proxy"): 1,  # a power cut for the programs
}
MOMENTS = ("suspend", "suspend", "rest", "resume", "resume")


@dataclass(frozen=True)
class Plan:
    """A kill in one cycle.

    Args:
        parts: that go down together.
        moment: the half of the cycle.
        share: of the time that this half took last, after which they are killed.
    """

    parts: tuple[str, ...]
    moment: str
    share: float

    @classmethod
    def draw(cls, chance: random.Random, rate: float) -> Plan | None:
        """A plan, or, as often as the rate says, none; the same for the same seed."""
        wanted, moment, share = (
            chance.random(),
            chance.choice(MOMENTS),
            chance.random(),
        )
        (parts,) = chance.choices(list(PARTS), list(PARTS.values()))
        return cls(parts, moment, share) if wanted < rate else None


@dataclass
class Killer:
    """Kills one plan at a time, whoever has drawn it."""

    stack: Stack
    kills: Counter[str] = field(default_factory=Counter)
    #: What kept a part from starting again: the soak ends with it.
    broken: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: float = 0.0

    @contextlib.contextmanager
    def during(self, moment: str, plan: Plan | None, usual: float) -> Iterator[None]:
        """Carry out what is planned for this half of a cycle, beside what is done."""
        if plan is None or plan.moment != moment:
            yield
            return
        timer = threading.Timer(plan.share * usual, self.kill, [plan.parts])
        timer.start()
        try:
            yield
        finally:
            timer.join()

    def kill(self, parts: tuple[str, ...]) -> None:
        """SIGKILL them, and start again what nobody else starts again."""
        with self._lock:
            try:
                self._kill(parts)
            except StackError as error:
                self.broken = str(error)
            finally:
                self._last = time.monotonic()

    def since(self, began: float) -> bool:
        """Whether something is, or was, down since shortly before that moment."""
        return self._lock.locked() or self._last > began - 15

    def _kill(self, parts: tuple[str, ...]) -> None:
        for part in parts:
            # One of the Hub's own programs may be down from the kill before.
            with contextlib.suppress(StackError, ProcessLookupError):
                self.stack.kill(part)
                self.kills[part] += 1
        if "agent" in parts:
            self.stack.start_agent()
        if "hub" in parts:
            self.stack.start_hub()

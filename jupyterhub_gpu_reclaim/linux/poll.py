"""Waits for any of several descriptors, whatever their numbers.

An agent with many sessions has thousands of descriptors open; select(2) takes none
above 1023.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class Watched(Protocol):
    """What has a descriptor."""

    def fileno(self) -> int:
        """Its number."""


T = TypeVar("T", bound=Watched)


def readable(watched: Iterable[T], seconds: float) -> list[T]:
    """Those that can be read from, or have ended, at the latest after that time.

    Args:
        watched: what to wait for.
        seconds: how long; 0 or less only looks. Empty when the time is up.
    """
    by_number = {one.fileno(): one for one in watched}
    poll = select.poll()
    for number in by_number:
        poll.register(number, select.POLLIN)
    found = poll.poll(max(0.0, seconds) * 1000)
    return [by_number[number] for number, _ in found]

"""Live updates: changes of sessions to many readers, and the steps of one operation.

Everything is bounded: a reader that is too slow is dropped. No decision depends on what
is published here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from jupyterhub_gpu_reclaim.common.models import Event, Step, Tree

T = TypeVar("T")

#: Most changes that a reader may lag behind before it is dropped.
READER_LIMIT = 256
#: Most steps of an operation that are kept: half an hour at two a second. Its end is
#: always told.
EVENT_LIMIT = 4096


class Broadcast(Generic[T]):
    def __init__(self) -> None:
        self._readers: set[asyncio.Queue[T | None]] = set()

    def publish(self, value: T) -> None:
        for queue in list(self._readers):
            if queue.full():
                self._drop(queue)
            else:
                queue.put_nowait(value)

    def close(self) -> None:
        for queue in list(self._readers):
            self._drop(queue)

    async def read(self) -> AsyncIterator[T]:
        """Yield everything from now on; ends when this reader is too slow."""
        queue: asyncio.Queue[T | None] = asyncio.Queue(READER_LIMIT)
        self._readers.add(queue)
        try:
            while (value := await queue.get()) is not None:
                yield value
        finally:
            self._readers.discard(queue)

    def _drop(self, queue: asyncio.Queue[T | None]) -> None:
        self._readers.discard(queue)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)


class OperationEvents:
    """Events of one capture or restore, for readers that come late or again."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._events: list[Event] = []
        self._news = asyncio.Event()
        self.ended = False
        self._abandoned = False

    def abandon(self) -> None:
        """Release readers without an end: this program stops, the operation goes on."""
        self._abandoned = True
        self._news.set()

    def add(self, event: Event) -> None:
        """Take the next event; the one that is not a step is the last."""
        full = event.step is not None and len(self._events) >= EVENT_LIMIT
        if self.ended or full:
            return
        self._events.append(event)
        self.ended = event.step is None
        self._news.set()
        self._news = asyncio.Event()

    @property
    def succeeded(self) -> bool:
        return self.ended and self._events[-1].failure is None

    @property
    def tree(self) -> Tree | None:
        return self._events[-1].tree if self.ended else None

    def steps(self) -> list[Step]:
        """Return the newest state of every step, in the order in which they began."""
        latest: dict[str, Step] = {}
        for event in self._events:
            if event.step is not None:
                latest[event.step.step] = event.step
        return list(latest.values())

    def waits(self) -> list[Step]:
        return [step for step in self.steps() if step.state in {"begun", "going"}]

    async def read(self, after: int) -> AsyncIterator[Event]:
        """Yield events from number ``after`` on; every reader gets the last one."""
        at = min(max(after, 0), len(self._events))
        if self.ended:
            at = min(at, len(self._events) - 1)
        while True:
            news = self._news
            while at < len(self._events):
                yield self._events[at]
                at += 1
            if self.ended or self._abandoned:
                return
            await news.wait()


class ChangeSignal:
    """Lets a call wait until a condition holds, checked after every change."""

    def __init__(self) -> None:
        self._news = asyncio.Event()

    def touch(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Wait until a condition holds; whether it does."""
        try:
            async with asyncio.timeout(limit):
                while not condition():
                    await self._news.wait()
        except TimeoutError:
            return condition()
        return True

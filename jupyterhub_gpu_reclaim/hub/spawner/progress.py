"""Progress reporter: the steps of a resume for the Hub's progress page.

It turns the service's events into lines, for ``Spawner.progress()`` and for a page that
is loaded in the middle of a start.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common import text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from jupyterhub_gpu_reclaim.common.models import Step

#: Percent that all steps together may reach; the rest is the server's first answer.
CEILING = 92.0
#: Share of the way left that one finished step takes.
STRIDE = 0.25


class ProgressReporter:
    """Events of one start, for any number of readers, from the beginning."""

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []
        self._steps: dict[str, dict[str, str]] = {}  #: the newest state of each
        self._status = ""  #: newest words that do not belong to a step
        self.ended = False  #: no more lines will come
        self.handed_over = False  #: the spawner itself says the rest
        self._news = asyncio.Event()
        self._percent = 2.0

    def report(self, message: str, percent: float | None = None) -> None:
        if percent is not None:
            self._percent = max(self._percent, min(percent, CEILING))
        self._status = message
        self._add({"progress": int(self._percent), "message": message})

    def step(self, step: Step) -> None:
        left, shown = CEILING - self._percent, self._percent
        if step.state == "done":
            self._percent = shown = shown + left * STRIDE
        elif step.total_bytes:
            shown += left * STRIDE * min(1.0, step.bytes / step.total_bytes)
        fields = {
            "step": step.step,
            "title": step.title,
            "state": step.state,
            "facts": facts(step),
        }
        self._steps[step.step] = fields
        self._status = ""
        message = sentence(step)
        self._add({"progress": int(shown), "message": message, "gpu_reclaim": fields})

    @property
    def story(self) -> dict[str, Any]:
        percent = self._lines[-1]["progress"] if self._lines else 0
        steps = list(self._steps.values())
        return {"percent": percent, "status": self._status, "steps": steps}

    def end(self) -> None:
        self.ended = True
        self._wake()

    def hand_over(self) -> None:
        """End our lines: it is a cold start."""
        self.handed_over = True
        self.end()

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        shown = 0
        while True:
            news = self._news
            while shown < len(self._lines):
                yield self._lines[shown]
                shown += 1
            if self.ended:
                return
            await news.wait()

    def _add(self, line: dict[str, Any]) -> None:
        self._lines.append(line)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


async def interleaved(
    events: AsyncGenerator[dict[str, Any]], look: Callable[[], str], seconds: float
) -> AsyncGenerator[dict[str, Any]]:
    """Yield another source's events, and our sentence whenever it has changed."""
    before = ""
    coming = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            come, _ = await asyncio.wait({coming}, timeout=seconds)
            words = look()
            if words and words != before:
                yield {"message": words}
            before = words
            if come:
                event = coming.result()
                if event is None:
                    return
                yield event
                coming = asyncio.ensure_future(anext(events, None))
    finally:
        coming.cancel()


def facts(step: Step) -> str:
    return text.progress(step.bytes, step.total_bytes, step.seconds)


def sentence(step: Step) -> str:
    """A step in words: "Reading the memory: 1.2 GB of 4.0 GB, 3.1 s"."""
    words = ": ".join(filter(None, [step.title, facts(step)]))
    if step.state == "done":
        return f"{words} ✓"
    return f"{words} (failed)" if step.state == "failed" else f"{words} …"

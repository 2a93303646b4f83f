"""Sampler: keeps the agent's samples in one window per incarnation.

Sampled at every interval, and again right before a policy's decision is acted on: a
sample may be as old as the interval, and a person may have returned in that time. It
judges nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import Sample, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent, Window
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: Samples younger than that, in seconds, count as fresh, so that sessions which fall
#: idle together are sampled together.
FRESH_SECONDS = 1.0


class Watch:
    """The windows of all sessions."""

    def __init__(
        self, sessions: Sessions, agent: Agent, window: Callable[[], Window]
    ) -> None:
        self._sessions = sessions
        self._agent = agent
        self._window = window
        self._windows: dict[SessionKey, tuple[str, Window]] = {}
        self._looking = asyncio.Lock()
        self._asked: float | None = None  # monotonic, before the agent was asked
        self._samples: dict[str, Sample] = {}  # the last answer, by incarnation
        #: When samples came last, seconds since the epoch.
        self.sampled: float | None = None

    @property
    def watched(self) -> int:
        """Number of sessions with a window."""
        return len(self._windows)

    async def sample(self) -> None:
        """Ask the agent for samples, and add them to the windows.

        Raises:
            Unreachable: nothing is known, and nothing is made up.
        """
        async with self._looking:
            await self._sample()

    async def refresh(self, row: SessionRow) -> bool:
        """The same for one session; an answer of a moment ago is enough.

        Returns:
            Whether its incarnation was in the answer; if its node is silent it is not,
            and
            what is known of it is old.

        Raises:
            Unreachable: nothing is known, and nothing is made up.
        """
        async with self._looking:
            now = self._sessions.clock.monotonic()
            if self._asked is None or now - self._asked > FRESH_SECONDS:
                await self._ask()
            sample = self._samples.get(row.incarnation)
            if sample is not None:
                self._take(row, sample)
                self._measure(row)
            return sample is not None

    async def _sample(self) -> None:
        await self._ask()
        rows = {row.incarnation: row for row in self._sessions.journal.sessions()}
        for incarnation, sample in self._samples.items():
            row = rows.get(incarnation)
            if row is not None and row.phase is not Phase.STOPPED:
                self._take(row, sample)
        self._sessions.history.prune(self._sessions.clock.now())
        self.measure()

    async def _ask(self) -> None:
        asked = self._sessions.clock.monotonic()
        samples = await self._agent.samples()
        self._asked, self.sampled = asked, self._sessions.clock.now()
        self._samples = {sample.incarnation: sample for sample in samples}

    def _take(self, row: SessionRow, sample: Sample) -> None:
        self._window_of(row).add(sample)
        self._sessions.history.add(row.key, sample)

    def _window_of(self, row: SessionRow) -> Window:
        """The window of that incarnation; a new incarnation begins a new one."""
        incarnation, window = self._windows.get(row.key, ("", None))
        if window is None or incarnation != row.incarnation:
            window = self._window()
            self._windows[row.key] = (row.incarnation, window)
        return window

    def measure(self) -> None:
        """Sum the windows up as of now."""
        for key, (incarnation, _) in list(self._windows.items()):
            row = self._sessions.row(key)
            if row.incarnation != incarnation or row.phase is Phase.STOPPED:
                del self._windows[key]
                self._sessions.measured(key, None)
            else:
                self._measure(row)

    def _measure(self, row: SessionRow) -> None:
        terms = self._sessions.terms_of(row)
        span = terms.idle_after if terms is not None else None
        usage = self._windows[row.key][1].usage(self._sessions.clock.now(), span)
        self._sessions.measured(row.key, usage)

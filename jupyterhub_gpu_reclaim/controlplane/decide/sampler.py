"""Sampler: keeps the agent's samples in one window per incarnation.

Sampled at every interval, and again right before a policy's decision is acted on: a
sample may be as old as the interval, and a person may have returned in that time. It
judges nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.sessions.history import added

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import Sample
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions
    from jupyterhub_gpu_reclaim.sampling.window import Window

#: Samples younger than that, in seconds, count as fresh, so that sessions which fall
#: idle together are sampled together.
FRESH_SECONDS = 1.0


class SessionSampler:
    """Samples all sessions, each into its own window."""

    def __init__(
        self, sessions: Sessions, agent: Agent, window: Callable[[], Window]
    ) -> None:
        self._sessions = sessions
        self._agent = agent
        self._window = window
        self._asking = asyncio.Lock()
        self._asked: float | None = None  # monotonic, before the agent was asked
        self._samples: dict[str, Sample] = {}  # the last answer, by incarnation
        #: When samples came last, seconds since the epoch.
        self.sampled: float | None = None

    @property
    def watched(self) -> int:
        """Number of sessions with a window."""
        return sum(each.window is not None for each in self._sessions.runtimes.values())

    async def sample(self) -> None:
        """Ask the agent for samples, and add them to the windows.

        Raises:
            Unreachable: nothing is known, and nothing is made up.
        """
        async with self._asking:
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
        async with self._asking:
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
        now = self._sessions.clock.now()
        for runtime in self._sessions.runtimes.values():
            if runtime.history is not None and runtime.history.is_over(now):
                runtime.history = None
        self.measure()

    async def _ask(self) -> None:
        asked = self._sessions.clock.monotonic()
        samples = await self._agent.samples()
        self._asked, self.sampled = asked, self._sessions.clock.now()
        self._samples = {sample.incarnation: sample for sample in samples}

    def _take(self, row: SessionRow, sample: Sample) -> None:
        """Add a sample; a new incarnation begins a new window."""
        runtime = self._sessions.runtime(row.key)
        if runtime.window is None or runtime.sampled != row.incarnation:
            runtime.window, runtime.sampled = self._window(), row.incarnation
        runtime.window.add(sample)
        runtime.history = added(runtime.history, sample)

    def measure(self) -> None:
        """Sum the windows up as of now."""
        for key, runtime in list(self._sessions.runtimes.items()):
            if runtime.window is None:
                continue
            row = self._sessions.row(key)
            if runtime.sampled != row.incarnation or row.phase is Phase.STOPPED:
                runtime.window = runtime.usage = None
            else:
                self._measure(row)

    def _measure(self, row: SessionRow) -> None:
        runtime, policy = self._sessions.runtime(row.key), self._sessions.policy_of(row)
        if runtime.window is not None:
            span = policy.idle_after if policy is not None else None
            runtime.usage = runtime.window.usage(self._sessions.clock.now(), span)

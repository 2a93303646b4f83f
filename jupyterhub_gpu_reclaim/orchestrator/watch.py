"""What the sessions do: the agent's samples, kept in a window per incarnation.

Filled by the loops at every beat, and by the worker right before it acts on a policy's
word: the sample that a judgement rests on may be as old as the interval between two of
them, and a person may have come back in that time. It judges nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.models import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.models import SessionKey
    from jupyterhub_gpu_reclaim.orchestrator.ports import Agent, Window
    from jupyterhub_gpu_reclaim.orchestrator.rows import SessionRow
    from jupyterhub_gpu_reclaim.orchestrator.sessions import Sessions

#: Samples of that age, in seconds, still are a look at the session as it is now; so
#: that many sessions that fall idle together are looked at together.
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
        self._seen: set[str] = set()  # incarnations in the last answer
        #: When samples came last, seconds since the epoch.
        self.sampled: float | None = None

    @property
    def watched(self) -> int:
        """How many sessions have a window."""
        return len(self._windows)

    async def sample(self) -> None:
        """Ask the agent what the sessions do, and sum that up.

        Raises:
            Unreachable: nothing is known, and nothing is made up.
        """
        async with self._looking:
            await self._sample()

    async def refresh(self, incarnation: str) -> bool:
        """The same, unless it was done a moment ago.

        Returns:
            Whether that incarnation was in the answer; one whose node keeps silent
            is not, and what is known of it is old.

        Raises:
            Unreachable: nothing is known, and nothing is made up.
        """
        async with self._looking:
            now = self._sessions.clock.monotonic()
            if self._asked is None or now - self._asked > FRESH_SECONDS:
                await self._sample()
            return incarnation in self._seen

    async def _sample(self) -> None:
        asked = self._sessions.clock.monotonic()
        samples = await self._agent.samples()
        self._asked = asked
        self._seen = {sample.incarnation for sample in samples}
        self.sampled = self._sessions.clock.now()
        rows = {row.incarnation: row for row in self._sessions.journal.sessions()}
        for sample in samples:
            row = rows.get(sample.incarnation)
            if row is not None and row.phase is not Phase.STOPPED:
                self._window_of(row).add(sample)
                self._sessions.history.add(row.key, sample)
        self._sessions.history.prune(self.sampled)
        self.measure()

    def _window_of(self, row: SessionRow) -> Window:
        """The window of that incarnation; a new incarnation begins a new one."""
        incarnation, window = self._windows.get(row.key, ("", None))
        if window is None or incarnation != row.incarnation:
            window = self._window()
            self._windows[row.key] = (row.incarnation, window)
        return window

    def measure(self) -> None:
        """Sum the windows up as of now."""
        now = self._sessions.clock.now()
        for key, (incarnation, window) in list(self._windows.items()):
            row = self._sessions.row(key)
            if row.incarnation != incarnation or row.phase is Phase.STOPPED:
                del self._windows[key]
                self._sessions.measured(key, None)
            else:
                terms = self._sessions.terms_of(row)
                span = terms.idle_after if terms is not None else None
                self._sessions.measured(key, window.usage(now, span))

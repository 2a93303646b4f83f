"""Keeps the agent's samples, and makes of them what the policies are asked about.

Sampled at every interval, and again right before a policy's decision is acted on: a
sample may be as old as the interval, and a person may have returned in that time.
Nothing is judged here.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import Phase, SessionPolicy
from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyterhub_gpu_reclaim.common.models import Decision, Sample, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
    from jupyterhub_gpu_reclaim.sampling.window import Window

    #: Returns every reason for or against a suspend, the deciding one first; pure.
    Decide = Callable[[SessionSnapshot, float], Sequence[Decision]]


#: Samples younger than that, in seconds, count as fresh, so that sessions which fall
#: idle together are sampled together.
FRESH_SECONDS = 1.0
#: Longest answer, in seconds: a later one may tell of a time before its user came back.
LATE_SECONDS = 5.0


@dataclass(eq=False)
class SessionSampler:
    sessions: Sessions
    window: Callable[[], Window]
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def sample(self) -> None:
        """Ask the agent for samples, and add them to the windows.

        Raises:
            Unreachable: nothing is known, and nothing is made up.
        """
        async with self._asking:
            await self._ask()
            self.sessions.sampled = self.sessions.clock.now()
            self.measure()

    async def refresh(self, row: SessionRow) -> bool:
        """Sample one session anew; whether it was in the answer, and that came in time.

        Raises:
            Unreachable: nothing is known, and nothing is made up.
        """
        async with self._asking:
            if self._age(row) > FRESH_SECONDS:
                await self._ask(row.key)
            if self._age(row) > LATE_SECONDS:
                return False
            self._measure(row)
            return True

    def _age(self, row: SessionRow) -> float:
        runtime = self.sessions.runtime(row.key)
        asked = runtime.sample_asked if runtime.sample is not None else -math.inf
        return self.sessions.clock.monotonic() - asked

    async def _ask(self, key: SessionKey | None = None) -> None:
        asked = self.sessions.clock.monotonic()
        samples = await self.sessions.agent.samples(key)
        for known, runtime in self.sessions.runtimes.items():
            if key in {None, known}:
                runtime.sample_asked = -math.inf
        for sample in samples:
            row = self.sessions.row(sample.key)
            if row.incarnation == sample.incarnation and row.phase is not Phase.STOPPED:
                self._take(row, sample, asked)

    def _take(self, row: SessionRow, sample: Sample, asked: float) -> None:
        runtime = self.sessions.runtime(row.key)
        if runtime.window is None:
            runtime.window = self.window()
        runtime.window.add(sample)
        runtime.sample, runtime.sample_asked = sample, asked

    def measure(self) -> None:
        for key, runtime in list(self.sessions.runtimes.items()):
            if runtime.window is None:
                continue
            row = self.sessions.row(key)
            if row.phase is Phase.STOPPED:
                runtime.window = runtime.usage = None
            else:
                self._measure(row)

    def _measure(self, row: SessionRow) -> None:
        runtime, policy = self.sessions.runtime(row.key), self.sessions.policy_of(row)
        if runtime.window is not None:
            span = policy.idle_after if policy is not None else None
            runtime.usage = runtime.window.usage(self.sessions.clock.now(), span)


def snapshot_of(sessions: Sessions, row: SessionRow) -> SessionSnapshot:
    runtime = sessions.runtime(row.key)
    usage, probed = runtime.usage, runtime.probed
    if usage is not None and probed is not None and probed.since is not None:
        usage = usage.used_at(probed.since, "the administrator's probe")
    return SessionSnapshot(
        key=row.key,
        phase=runtime.phase(row),
        since=row.since,
        usage=usage,
        probed=probed,
        started_at=row.started_at,
        resumed_at=row.resumed_at,
        kept_until=row.kept_until,
        kept_by=row.kept_by,
        opted_out_by=row.opted_out_by,
        backoff_until=row.backoff_until,
        failure=row.failure,
        gpus=runtime.gpus_to_free,
        terms=sessions.policy_of(row) or SessionPolicy(),
        wanted=runtime.wanted,
        waking=runtime.shortage is not None,
    )

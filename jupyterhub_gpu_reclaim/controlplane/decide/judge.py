"""Asks the policy, and the administrator's own probe, about a session now; warns it.

The policy is asked here and nowhere else. For the probe nothing waits but the suspend
of the very session.

Nothing is suspended here. A warning is only in memory: after a restart of the service
a session is warned again, for the full time.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane.decide import draining
from jupyterhub_gpu_reclaim.controlplane.decide.sampler import snapshot_of
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE
from jupyterhub_gpu_reclaim.policy import probe
from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot, deny
from jupyterhub_gpu_reclaim.policy.probe import Probed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from jupyterhub_gpu_reclaim.common.models import Decision, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.decide.sampler import (
        Decide,
        SessionSampler,
    )
    from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
    from jupyterhub_gpu_reclaim.policy.nap import NapPolicy

    #: Runs the probe; what it raises is why it has no answer.
    Ask = Callable[[SessionKey], Awaitable[str]]


_PROBE = Reason.PROBE.value


@dataclass(eq=False)
class Judge:
    sessions: Sessions
    decide: Decide
    decide_nap: NapPolicy | None  #: None: by order only
    together: Together
    probing: Probing

    def reclaims(self, row: SessionRow) -> bool:
        now = self.sessions.clock.now()
        snapshot, wanted = snapshot_of(self.sessions, row), self.together.wanted(row)
        snapshot = msgspec.structs.replace(snapshot, wanted=wanted)
        decisions = list(self.decide(snapshot, now))
        if decisions and (decisions[0].reclaim or decisions[0].code == _PROBE):
            self.probing.want(row)
        if decisions and decisions[0].reclaim:
            against = self.together.against(row, now, wanted)
            decisions = decisions if against is None else [against]
        goes = draining.decision(self.sessions, row)
        if goes is not None:
            waits = row.backoff_until is not None and row.backoff_until > now
            decisions = decisions if waits else [goes, *decisions]
        silence = self.sessions.silences.get(row.node)
        if decisions and not decisions[0].reclaim and silence is not None:
            told = {"code": silence.code, "message": silence.message}
            decisions = [msgspec.structs.replace(decisions[0], **told), *decisions]
        self.sessions.judged(row.key, decisions)
        return bool(decisions) and decisions[0].reclaim

    def naps(self, row: SessionRow) -> bool:
        """Ask the policy; use is summed up over the time after which it naps."""
        now = self.sessions.clock.now()
        decisions: list[Decision] = []
        snapshot = snapshot_of(self.sessions, row)
        # Beside programs that nap, another one may have begun to use a GPU.
        holds_memory = snapshot.usage is not None and bool(snapshot.usage.gpu_memory)
        awake = snapshot.phase is Phase.RUNNING or (
            snapshot.phase is Phase.NAPPING and holds_memory
        )
        if self.decide_nap is not None and awake:
            after = self.decide_nap.after(snapshot.terms)
            snapshot = self._nap_snapshot(snapshot, row, after)
            decisions = list(self.decide_nap(snapshot, now))
        self.sessions.judged_nap(row.key, decisions[0] if decisions else None)
        return bool(decisions) and decisions[0].reclaim

    def room_snapshot(self, row: SessionRow) -> SessionSnapshot:
        after = self.decide_nap.room_after if self.decide_nap is not None else 0.0
        snapshot = self._nap_snapshot(snapshot_of(self.sessions, row), row, after)
        trouble = self.sessions.runtime(row.key).nap_trouble
        if trouble is not None and trouble.is_short:
            # Its user came back soon; whoever waits must not pay for that for an hour.
            snapshot = msgspec.structs.replace(
                snapshot, backoff_until=None, failure=None
            )
        return msgspec.structs.replace(snapshot, made_room_at=row.made_room_at)

    def gives_room(self, row: SessionRow) -> Decision | None:
        now = self.sessions.clock.now()
        verdict = self.for_room(self.room_snapshot(row), now)[0]
        return verdict if verdict.reclaim else None

    def for_room(self, snapshot: SessionSnapshot, now: float) -> Sequence[Decision]:
        if self.decide_nap is None:
            return [deny(Reason.NAP_OFF, rule="")]
        return self.decide_nap.for_room(snapshot, now)

    def _nap_snapshot(
        self, snapshot: SessionSnapshot, row: SessionRow, after: float
    ) -> SessionSnapshot:
        runtime, now = self.sessions.runtime(row.key), self.sessions.clock.now()
        trouble = runtime.nap_trouble
        usage = runtime.window.usage(now, after) if runtime.window else None
        return msgspec.structs.replace(
            snapshot,
            usage=usage if snapshot.usage is not None else None,
            # A suspend that has failed says nothing of naps.
            backoff_until=trouble.until if trouble is not None else None,
            failure=trouble.failure if trouble is not None else None,
        )

    def why(self, key: SessionKey) -> Decision:
        return self.sessions.runtime(key).decisions[0]


_log = logging.getLogger(__name__)

#: Seconds after which a session that stays idle is asked about again.
AGAIN = 30.0


@dataclass(eq=False)
class Probing:
    sessions: Sessions
    ask: Ask | None
    _asking: dict[SessionKey, asyncio.Task[None]] = field(
        default_factory=dict, init=False
    )

    def want(self, row: SessionRow) -> None:
        known = self.sessions.runtime(row.key).probed
        age = self.sessions.clock.now() - known.at if known is not None else AGAIN
        if self.ask is not None and age >= AGAIN:
            self._begin(row)

    async def ask_now(self, row: SessionRow) -> None:
        if self.ask is not None:
            await asyncio.shield(self._begin(row))

    def _begin(self, row: SessionRow) -> asyncio.Task[None]:
        task = self._asking.get(row.key)
        if task is None:
            task = self._asking[row.key] = asyncio.create_task(self._ask_about(row))
            task.add_done_callback(lambda _: self._asking.pop(row.key))
        return task

    async def _ask_about(self, row: SessionRow) -> None:
        now = self.sessions.clock.now()
        try:
            answer = probe.read(await self.ask(row.key), now) if self.ask else None
        except Exception as error:  # noqa: BLE001 - the administrator's, whatever it is
            answer = Probed(at=now, trouble=str(error) or type(error).__name__)
        if answer is not None and answer.trouble:
            _log.warning("%s: the probe is silent: %s", row.key, answer.trouble)
        if self.sessions.row(row.key).incarnation == row.incarnation:
            self.sessions.runtime(row.key).probed = answer


@dataclass(eq=False)
class Warnings:
    sessions: Sessions
    sampler: SessionSampler
    judge: Judge
    together: Together

    def spared(self) -> list[SessionKey]:
        runtimes = self.sessions.runtimes.items()
        warned = [key for key, each in runtimes if each.suspends_at is not None]
        rows = map(self.sessions.row, warned)
        return [row.key for row in rows if not self.judge.reclaims(row)]

    def spare(self, row: SessionRow) -> None:
        runtime = self.sessions.runtime(row.key)
        if runtime.suspends_at is not None:
            runtime.suspends_at = None
            self._note(row, "stays")

    def warn(self, row: SessionRow) -> float:
        runtime, now = self.sessions.runtime(row.key), self.sessions.clock.now()
        due, warn_for = runtime.suspends_at, self._seconds(row)
        if due is not None:
            if due > now + warn_for:  # its node has less time than it had
                runtime.suspends_at = due = now + warn_for
                self.sessions.touch(row.key)
            return max(0.0, due - now)
        if warn_for > 0:
            runtime.suspends_at = now + warn_for
            goes = draining.decision(self.sessions, row) is not None
            unless = "" if goes else " unless somebody uses it"
            more = f" It is suspended in {duration(warn_for)}{unless}."
            self._note(row, "warned", more)
        return max(0.0, warn_for)

    def _seconds(self, row: SessionRow) -> float:
        all_of_them = [row, *self.together.members(row)]
        return draining.warn_for(
            self.sessions, row, max(map(self._usually, all_of_them))
        )

    def _usually(self, row: SessionRow) -> float:
        policy = self.sessions.policy_of(row)
        ruled = policy.warn_for if policy is not None else None
        return self.sessions.settings.warn_for if ruled is None else ruled

    async def confirm(self, row: SessionRow) -> bool:
        """Sample once more, since the last judgement may be old, and judge again."""
        if not await self.is_fresh(row):
            return False
        await self.judge.probing.ask_now(row)
        return self.sessions.row(row.key) == row and self.judge.reclaims(row)

    async def is_fresh(self, row: SessionRow) -> bool:
        """Sample once more; whether that succeeded and it is still the same session.

        Raises:
            Unreachable: no fresh sample can be had.
        """
        seen = await self.sampler.refresh(row)
        # A session whose node is silent was not sampled: it may be at work.
        return seen and self.sessions.row(row.key) == row

    def _note(self, row: SessionRow, what: str, more: str = "") -> None:
        why = self.judge.why(row.key)
        told = f"{why.message}{more}", why.code
        line = self.sessions.audit_line(row.key, SERVICE, what, *told)
        self.sessions.update(row.key, line)

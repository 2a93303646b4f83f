"""Asks the policy about a session now: its snapshot, its rules, the decision.

The policy is asked here and nowhere else. It makes no requests: groups and options come
with the Hub's other answers, labels with the pods that are watched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.models import Phase, SessionPolicy
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.decide.snapshot import snapshot_of
from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot, deny
from jupyterhub_gpu_reclaim.policy.rules import Subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.models import (
        Decision,
        SessionKey,
    )
    from jupyterhub_gpu_reclaim.controlplane.decide.draining import Draining
    from jupyterhub_gpu_reclaim.controlplane.decide.probing import Probing
    from jupyterhub_gpu_reclaim.controlplane.decide.snapshot import Decide, DecideNap
    from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent, HubFacts
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions
    from jupyterhub_gpu_reclaim.policy.rules import Rules


_PROBE = Reason.PROBE.value


class SessionPolicies:
    def __init__(self, rules: Rules, hub: HubFacts, agent: Agent) -> None:
        self._rules = rules
        self._hub = hub
        self._agent = agent

    def __call__(self, key: SessionKey) -> SessionPolicy:
        subject = Subject(
            key=key,
            groups=self._hub.groups(key.user),
            options=self._hub.options(key),
            labels=self._agent.labels(key),
        )
        return self._rules.policy_for(subject)


class Judge:
    def __init__(
        self,
        sessions: Sessions,
        decide: Decide,
        draining: Draining,
        naps: DecideNap | None = None,
        *,
        together: Together,
        probing: Probing,
    ) -> None:
        self._probing = probing
        self._sessions = sessions
        self._draining = draining
        self._together = together
        self._decide = decide
        self._naps = naps

    def reclaims(self, row: SessionRow) -> bool:
        now = self._sessions.clock.now()
        snapshot, wanted = snapshot_of(self._sessions, row), self._together.wanted(row)
        snapshot = msgspec.structs.replace(snapshot, wanted=wanted)
        decisions = list(self._decide(snapshot, now))
        if decisions and (decisions[0].reclaim or decisions[0].code == _PROBE):
            self._probing.want(row)
        if decisions and decisions[0].reclaim:
            against = self._together.against(row, now, wanted)
            decisions = decisions if against is None else [against]
        goes = self._draining.decision(row)
        if goes is not None:
            waits = row.backoff_until is not None and row.backoff_until > now
            decisions = decisions if waits else [goes, *decisions]
        silence = self._sessions.silences.get(row.node)
        if decisions and not decisions[0].reclaim and silence is not None:
            told = {"code": silence.code, "message": silence.message}
            decisions = [msgspec.structs.replace(decisions[0], **told), *decisions]
        self._sessions.judged(row.key, decisions)
        return bool(decisions) and decisions[0].reclaim

    def naps(self, row: SessionRow) -> bool:
        """Ask the policy; use is summed up over the time after which it naps."""
        now = self._sessions.clock.now()
        decisions: list[Decision] = []
        snapshot = snapshot_of(self._sessions, row)
        # Beside programs that nap, another one may have begun to use a GPU.
        holds_memory = snapshot.usage is not None and bool(snapshot.usage.gpu_memory)
        awake = row.phase is Phase.RUNNING or (
            row.phase is Phase.NAPPING and holds_memory
        )
        if self._naps is not None and awake:
            after = self._naps.after(snapshot.terms)
            snapshot = self._nap_snapshot(snapshot, row, after)
            decisions = list(self._naps(snapshot, now))
        self._sessions.judged_nap(row.key, decisions[0] if decisions else None)
        return bool(decisions) and decisions[0].reclaim

    def room_snapshot(self, row: SessionRow) -> SessionSnapshot:
        after = self._naps.room_after if self._naps is not None else 0.0
        snapshot = self._nap_snapshot(snapshot_of(self._sessions, row), row, after)
        trouble = self._sessions.runtime(row.key).nap_trouble_of(row.incarnation)
        if trouble is not None and trouble.is_short:
            # Its user came back soon; whoever waits must not pay for that for an hour.
            snapshot = msgspec.structs.replace(
                snapshot, backoff_until=None, failure=None
            )
        made_room_at = self._sessions.made_room_at(row.key)
        return msgspec.structs.replace(snapshot, made_room_at=made_room_at)

    def gives_room(self, row: SessionRow) -> Decision | None:
        """Return why the session naps for another one now; None: it does not."""
        now = self._sessions.clock.now()
        verdict = self.for_room(self.room_snapshot(row), now)[0]
        return verdict if verdict.reclaim else None

    def for_room(self, snapshot: SessionSnapshot, now: float) -> Sequence[Decision]:
        if self._naps is None:
            return [deny(Reason.NAP_OFF, rule="")]
        return self._naps.for_room(snapshot, now)

    def _nap_snapshot(
        self, snapshot: SessionSnapshot, row: SessionRow, after: float
    ) -> SessionSnapshot:
        runtime, now = self._sessions.runtime(row.key), self._sessions.clock.now()
        trouble = runtime.nap_trouble_of(row.incarnation)
        usage = runtime.window.usage(now, after) if runtime.window else None
        return msgspec.structs.replace(
            snapshot,
            usage=usage if snapshot.usage is not None else None,
            # A suspend that has failed says nothing of naps.
            backoff_until=trouble.until if trouble is not None else None,
            failure=trouble.failure if trouble is not None else None,
        )

    async def ask_probe(self, row: SessionRow) -> None:
        await self._probing.ask_now(row)

    def why(self, key: SessionKey) -> Decision:
        return self._sessions.runtime(key).decisions[0]

"""Opens a checkpoint as another server of its user, beside its session.

The agent commits what it has once more, as the checkpoint of a new session: from then
on there are two, neither of which needs the other, and the new one is suspended like
any. The Hub is asked to start it. If it will not (no named servers, or too many),
nothing is left of it. How it comes back under its own name: ``node/workflows/branch``.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import (
    BadRequest,
    ReclaimError,
    Refused,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import HubState, Phase, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.checkpoints import expiry
from jupyterhub_gpu_reclaim.controlplane.model.phases import SessionEvent
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.controlplane.checkpoints.deletions import Deletions
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent, Hub
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: A server's name, as a part of a host's name: KubeSpawner and subdomains make it so.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


class Branches:
    """Makes branches, and has them started."""

    def __init__(
        self,
        sessions: Sessions,
        agent: Agent,
        hub: Hub,
        deletions: Deletions,
        new_id: Callable[[], str],
    ) -> None:
        self._sessions = sessions
        self._agent = agent
        self._hub = hub
        self._deletions = deletions
        self._new_id = new_id

    async def open(
        self, key: SessionKey, checkpoint: str, server: str, by: str
    ) -> SessionKey:
        """Make a branch, and ask the Hub to start it; return its key.

        Args:
            key: the session.
            checkpoint: of it, which its user may bring back.
            server: name of the other server.
            by: who asks.

        Raises:
            BadRequest: no server may be called that.
            Refused: ``branch_impossible``; ``hub_refused``: nothing was made.
            NotFound: the store has no such checkpoint.
            Unreachable: a part does not answer; where it is the Hub, after all else,
                the branch is suspended, and started as soon as it does.
        """
        if not _NAME.fullmatch(server):
            what = "A server's name is up to 63 letters, digits, dots and dashes."
            raise BadRequest(Reason.INVALID, what=what)
        there = SessionKey(key.user, server)
        self._deletions.take_up()
        self._check_free(there)
        if await self._hub.server(there) is not HubState.STOPPED:
            raise _name_taken(there)
        info = await self._agent.branch(
            checkpoint,
            self._new_id(),
            there,
            session=secrets.token_hex(16),
            generation=self._sessions.next_generation(there),
        )
        try:
            self._check_free(there)
            self._note_suspended(key, info, by)
        except ReclaimError:
            await self._agent.discard(info.id)
            raise
        await self._start(key, info, by)
        return there

    def _check_free(self, there: SessionKey) -> None:
        if self._sessions.row(there).phase is not Phase.STOPPED:
            raise _name_taken(there)

    def _note_suspended(self, key: SessionKey, info: CheckpointInfo, by: str) -> None:
        """Note that the new session is suspended in its checkpoint."""
        sessions = self._sessions
        sessions.apply(
            info.key,
            SessionEvent.FOUND_SAVED,
            by=by,
            checkpoints=[expiry.current(info, sessions.clock.now())],
            session=info.session,
            account=sessions.row(key).account,
            incarnation=info.incarnation,
            checkpoint=info.id,
            generation=info.generation,
            term=info.term,
        )
        sessions.update(
            key, sessions.audit_line(key, by, "branch", f"{info.key.server}.")
        )

    async def _start(self, key: SessionKey, info: CheckpointInfo, by: str) -> None:
        try:
            await self._hub.start(info.key, key)
        except Unreachable:
            self._sessions.update(info.key, intent=Intent.RESUME, intent_by=by)
            raise
        except Refused as error:
            row = self._sessions.row(info.key)
            if row.phase is not Phase.SUSPENDED:
                return  # it has begun
            if error.retryable:
                self._sessions.update(info.key, intent=Intent.RESUME, intent_by=by)
                return
            expiry.discard(self._sessions, info.key, info.id, by=by)
            raise


def _name_taken(there: SessionKey) -> Refused:
    why = f"there is a server called {there.server} already"
    return Refused(Reason.BRANCH_IMPOSSIBLE, why=why)

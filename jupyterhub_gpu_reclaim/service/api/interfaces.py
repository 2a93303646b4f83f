"""What the routes may ask of the control plane, as a protocol.

Implemented by ``controlplane.api.controller.Controller`` and, in tests, by doubles that
are named for their fault. The routes use no journal, no agent and no Hub client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from jupyterhub_gpu_reclaim.common.auth.principals import Principal
    from jupyterhub_gpu_reclaim.common.models import (
        Compared,
        Event,
        Placement,
        SessionKey,
        SessionView,
        StartPlan,
        StopPlan,
        Verdict,
        Waiting,
    )
    from jupyterhub_gpu_reclaim.controlplane.api.audit_text import StoryPage
    from jupyterhub_gpu_reclaim.controlplane.api.users import Deleted
    from jupyterhub_gpu_reclaim.controlplane.model.rows import AuditRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.history import Line
    from jupyterhub_gpu_reclaim.controlplane.sessions.totals import StoreUse, Totals


class People(Protocol):
    """What people and programs may ask about sessions.

    Every call raises ``NotFound`` for an unknown session and ``Refused`` if the
    session's
    phase or a guard forbids it; none waits for the operation that it starts.
    """

    def sessions(self) -> Sequence[SessionView]:
        """Every session that is known."""

    def session(self, key: SessionKey) -> SessionView:
        """One session."""

    def why(self, key: SessionKey) -> Sequence[Verdict]:
        """Why it is suspended or not: the deciding reason first."""

    def waiting(self) -> Sequence[Waiting]:
        """The GPU queue, in order."""

    def changes(self) -> AsyncIterator[SessionView]:
        """Every change from now on; it ends for a reader that is too slow."""

    async def suspend(self, key: SessionKey, by: Principal) -> SessionView:
        """Suspend the session as soon as possible."""

    async def resume(
        self, key: SessionKey, by: Principal, *, manages: bool = False
    ) -> SessionView:
        """Resume the suspended session."""

    async def keep(
        self, key: SessionKey, seconds: float, by: Principal, *, manages: bool = False
    ) -> SessionView:
        """Leave it alone for that long; 0 takes that back; limits bind users only."""

    async def opt_out(self, key: SessionKey, out: bool, by: Principal) -> SessionView:
        """Exclude it from all policies, or include it again."""

    def story(self, user: str, before: int = 0, limit: int = 100) -> StoryPage:
        """What happened to a user's sessions, the newest first."""

    def audit(self, key: SessionKey, limit: int = 100) -> Sequence[AuditRow]:
        """Who did what to it, the newest first."""

    async def renew_login(self, key: SessionKey, by: Principal) -> SessionView:
        """Let the next start make a login valid that the Hub no longer knows."""

    async def bring_back(
        self,
        key: SessionKey,
        checkpoint: str,
        by: Principal,
        *,
        save_running: bool = False,
    ) -> SessionView:
        """Bring back another checkpoint than the one the session is suspended in."""

    async def start_fresh(self, key: SessionKey, by: Principal) -> SessionView:
        """Set the checkpoint aside, so that the next start is cold."""

    async def delete(
        self,
        key: SessionKey,
        by: Principal,
        checkpoint: str | None = None,
        *,
        everything: bool = False,
    ) -> Deleted:
        """Delete the session's checkpoints, or one of them."""

    async def end_second(
        self, key: SessionKey, incarnation: str, by: Principal
    ) -> None:
        """End a tree of the session that the Hub does not know."""


class Starter(Protocol):
    """The spawner's calls; see ``architecture.md``."""

    async def plan_start(self, placement: Placement) -> StartPlan:
        """How the session is to be started."""

    async def placed(self, placement: Placement) -> Any:
        """An init holds the place: restore the checkpoint under it."""

    def progress(self, key: SessionKey, after: int = 0) -> AsyncIterator[Event]:
        """Steps of the start under way, from number ``after`` on, until its end."""

    async def cancelled(self, placement: Placement) -> Any:
        """The start was cancelled."""

    async def plan_stop(self, placement: Placement) -> StopPlan:
        """Whether to stop the programs or to release a captured tree."""

    async def release(self, placement: Placement) -> Any:
        """End the captured tree."""

    async def stopped(self, placement: Placement) -> Any:
        """The server was stopped for real."""

    async def forget(self, key: SessionKey) -> Any:
        """The server was deleted."""


class Overview(Protocol):
    """Calls about many sessions at once."""

    async def compare(self) -> list[Compared]:
        """Compare the journal with the store and the Hub."""

    async def rebuild(self, by: str) -> list[Compared]:
        """Bring the journal in line with the store."""

    def lines(self, keys: set[SessionKey]) -> list[Line]:
        """GPU use of these sessions in the last hour."""

    def totals(self, hours: int) -> Totals:
        """All sessions together, now and over the last hours."""

    def store_use(self) -> list[StoreUse]:
        """What each user's checkpoints take in the store, the largest first."""


class Control(People, Starter, Overview, Protocol):
    """All of it, as the application wires it."""

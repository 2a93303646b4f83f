"""What the routes may ask of the orchestrator, as a protocol.

Fulfilled by ``controlplane.api.controller.Controller`` and, in tests, by doubles that
are named for their fault. The routes know nothing else of the orchestrator: no journal,
no agent, no Hub client.
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
    """What persons and programs may ask about sessions.

    Every call raises ``NotFound`` for a session that is not there and ``Refused``
    where the session's phase or a guard forbids it; none of them waits for the
    operation that it starts.
    """

    def sessions(self) -> Sequence[SessionView]:
        """Every session that is known."""

    def session(self, key: SessionKey) -> SessionView:
        """One session."""

    def why(self, key: SessionKey) -> Sequence[Verdict]:
        """Why it is suspended or not: the deciding reason first."""

    def waiting(self) -> Sequence[Waiting]:
        """Who waits for a GPU, in the order of the queue."""

    def changes(self) -> AsyncIterator[SessionView]:
        """Every change from now on; it ends for a reader that is too slow."""

    async def suspend(self, key: SessionKey, by: Principal) -> SessionView:
        """Save the session and free its machine, as soon as can be."""

    async def resume(
        self, key: SessionKey, by: Principal, *, manages: bool = False
    ) -> SessionView:
        """Bring the saved session back."""

    async def keep(
        self, key: SessionKey, seconds: float, by: Principal, *, manages: bool = False
    ) -> SessionView:
        """Leave it alone for that long; 0 takes that back; limits bind users only."""

    async def opt_out(self, key: SessionKey, out: bool, by: Principal) -> SessionView:
        """Never suspend it by policy, or do again."""

    def story(self, user: str, before: int = 0, limit: int = 100) -> StoryPage:
        """What happened to a user's sessions, the newest first."""

    def audit(self, key: SessionKey, limit: int = 100) -> Sequence[AuditRow]:
        """Who did what to it, the newest first."""

    async def renew_login(self, key: SessionKey, by: Principal) -> SessionView:
        """Let the next start make a login valid that the Hub does not know any more."""

    async def bring_back(
        self,
        key: SessionKey,
        checkpoint: str,
        by: Principal,
        *,
        save_running: bool = False,
    ) -> SessionView:
        """Bring back another saved state than the one that the session is in."""

    async def start_fresh(self, key: SessionKey, by: Principal) -> SessionView:
        """Put the saved session aside, so that the next start is a new one."""

    async def delete(
        self,
        key: SessionKey,
        by: Principal,
        checkpoint: str | None = None,
        *,
        everything: bool = False,
    ) -> Deleted:
        """Delete what is saved of the session, or one of its checkpoints."""

    async def end_second(
        self, key: SessionKey, incarnation: str, by: Principal
    ) -> None:
        """End programs of the session that the Hub does not know of."""


class Starter(Protocol):
    """What the spawner in the Hub's process asks; see ``architecture.md``."""

    async def plan_start(self, placement: Placement) -> StartPlan:
        """How the session is to be started."""

    async def placed(self, placement: Placement) -> Any:
        """An init holds the place: bring the checkpoint back under it."""

    def progress(self, key: SessionKey, after: int = 0) -> AsyncIterator[Event]:
        """Steps of the start in hand, from number ``after`` on, until its end."""

    async def cancelled(self, placement: Placement) -> Any:
        """The start was called off."""

    async def plan_stop(self, placement: Placement) -> StopPlan:
        """Whether to stop the programs or to release a saved tree."""

    async def release(self, placement: Placement) -> Any:
        """End the saved tree."""

    async def stopped(self, placement: Placement) -> Any:
        """The programs were really stopped."""

    async def forget(self, key: SessionKey) -> Any:
        """The server was deleted for ever."""


class Overview(Protocol):
    """What is asked of many sessions at once."""

    async def compare(self) -> list[Compared]:
        """The journal beside the store and the Hub."""

    async def rebuild(self, by: str) -> list[Compared]:
        """Let the journal follow the store."""

    def lines(self, keys: set[SessionKey]) -> list[Line]:
        """What these sessions did on their GPUs in the last hour."""

    def totals(self, hours: int) -> Totals:
        """All sessions together, now and over the last hours."""

    def store_use(self) -> list[StoreUse]:
        """What everybody's checkpoints take, the largest first."""


class Control(People, Starter, Overview, Protocol):
    """All of it, as the application wires it."""

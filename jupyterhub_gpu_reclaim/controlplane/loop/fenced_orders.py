"""Wraps agent and Hub so that every order needs the journal's lease.

Questions pass through unchanged. Orders are first checked against the database, so that
a paused service, whose journal another one has taken over meanwhile, gives no more
orders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from jupyterhub_gpu_reclaim.common.models import Event, SessionKey, Tree
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent, Hub

    Check = Callable[[], None]


class Agents:
    """An ``Agent`` whose orders are checked first."""

    def __init__(self, agent: Agent, check: Check) -> None:
        self._agent = agent
        self._check = check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def capture(
        self, incarnation: str, checkpoint: str, generation: int
    ) -> AsyncIterator[Event]:
        """Save a tree."""
        self._check()
        return self._agent.capture(incarnation, checkpoint, generation)

    def restore(self, incarnation: str, checkpoint: str) -> AsyncIterator[Event]:
        """Bring a tree back."""
        self._check()
        return self._agent.restore(incarnation, checkpoint)

    async def thaw(self, incarnation: str) -> Tree:
        """Thaw a captured tree."""
        self._check()
        return await self._agent.thaw(incarnation)

    async def release(self, incarnation: str, checkpoint: str) -> Tree:
        """End a captured tree."""
        self._check()
        return await self._agent.release(incarnation, checkpoint)

    async def kill(self, incarnation: str) -> Tree:
        """End an orphan."""
        self._check()
        return await self._agent.kill(incarnation)

    async def cancel(self, incarnation: str) -> None:
        """Cancel a capture."""
        self._check()
        await self._agent.cancel(incarnation)

    async def discard(self, checkpoint: str) -> None:
        """Delete a checkpoint."""
        self._check()
        await self._agent.discard(checkpoint)


class Hubs:
    """A ``Hub`` whose orders are checked first."""

    def __init__(self, hub: Hub, check: Check) -> None:
        self._hub = hub
        self._check = check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hub, name)

    async def stop(self, key: SessionKey) -> None:
        """Ask for a stop."""
        self._check()
        await self._hub.stop(key)

    async def start(self, key: SessionKey) -> None:
        """Ask for a start."""
        self._check()
        await self._hub.start(key)

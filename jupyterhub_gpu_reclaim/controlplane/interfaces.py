"""Protocols of the agent and the Hub, as the control plane needs them.

The agents of a cluster, one per node, are one more ``Agent``: it knows where each
incarnation lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.agent_orders import AgentOrder
    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        Event,
        Failure,
        HubState,
        Identity,
        Sample,
        SessionKey,
        Tree,
        Waiting,
    )


class Agent(Protocol):
    """Carries out orders on the node. Every call may raise ``Unreachable``."""

    async def trees(self, key: SessionKey | None = None) -> list[Tree]:
        """Return every incarnation with an init or a record.

        With a ``key`` only those of that session, and all of them: ``Unreachable`` if
        one of them cannot be asked for (``ENDING_UNSEEN``: all that there may be is
        being deleted). Without, such an incarnation is in the list as ``UNKNOWN``.
        """

    async def tree(self, incarnation: str) -> Tree:
        """Return one incarnation; ``NotFound`` if there is none."""

    def labels(self, key: SessionKey) -> dict[str, str] | None:
        """Return the labels of a session's pod; empty without pods; None: not known."""

    def ending(self, incarnation: str) -> Failure | None:
        """Return how a pod was ended, as the cluster says; None: not, or not known."""

    def waiting(self) -> list[Waiting]:
        """Return the sessions that wait for a node with a GPU, as far as known.

        The longest waiting first; places are not given here. Never waits, never raises.
        """

    async def samples(self, key: SessionKey | None = None) -> list[Sample]:
        """Return a sample of every session; with a ``key``, at least that one's.

        Then no other node is asked, and none is waited for.
        """

    def follow(self, incarnation: str, order: AgentOrder) -> AsyncIterator[Event]:
        """Give an order that streams; its last event has its end or its failure."""

    async def order(self, subject: str, order: AgentOrder) -> None:
        """Give any other order, and wait for its end; None for a checkpoint."""

    async def checkpoints(self, key: SessionKey | None = None) -> list[CheckpointInfo]:
        """Return the committed checkpoints; with a ``key``, only that session's."""

    async def identity(self, checkpoint: str) -> Identity:
        """Return the login inside a checkpoint."""


class Hub(Protocol):
    """The Hub's API. Every call may raise ``Unreachable``."""

    async def servers(self) -> dict[SessionKey, HubState]:
        """Return every server that is not stopped."""

    async def server(self, key: SessionKey) -> HubState:
        """Return a server; ``STOPPED`` also if user or server do not exist."""

    async def stop(self, key: SessionKey) -> None:
        """Ask for a stop, which also gives up a start that is pending.

        Idempotent; ``Refused`` (retryable) while something else is pending.
        """

    async def start(self, key: SessionKey) -> None:
        """Ask for a start; ``Refused`` (retryable) while something else is pending.

        Idempotent: a pending start, or a running server, is left as it is.
        """

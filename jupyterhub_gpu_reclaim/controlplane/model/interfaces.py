"""Protocols of the agent and the Hub, as the control plane needs them.

The agents of a cluster, one per node, are one more ``Agent``: it knows where each
incarnation lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        Event,
        Failure,
        HubState,
        Identity,
        Mark,
        Sample,
        SessionKey,
        Tree,
        Waiting,
    )


class Agent(Protocol):
    """Carries out orders on the node. Every call may raise ``Unreachable``.

    ``Unreachable`` means that nothing is known. ``capture``, ``release``, ``restore``,
    ``nap``, ``wake``, ``thaw``, ``kill``, ``cancel``, ``discard`` and ``mark`` are
    idempotent and may be repeated after any failure.
    """

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

    def capture(
        self,
        incarnation: str,
        checkpoint: str,
        generation: int,
        *,
        seen: float | None = None,
    ) -> AsyncIterator[Event]:
        """Capture a tree; the last event has ``checkpoint`` or ``failure``.

        ``seen`` is ``at`` of the sample that showed it idle, by its agent's clock: an
        order that arrives long after that is refused, and 0 begins nothing. None: it is
        asked for, idle or not.
        """

    def save(
        self, incarnation: str, checkpoint: str, generation: int, *, name: str = ""
    ) -> AsyncIterator[Event]:
        """Save a running tree; the last event has ``checkpoint`` or ``failure``.

        ``name`` is what a person calls the save point; it stands in its manifest.

        Any other order for the tree cancels the save, unless its agent has ended it
        already.
        """

    def restore(
        self, incarnation: str, checkpoint: str, *, put_files_back: bool = False
    ) -> AsyncIterator[Event]:
        """Restore a tree; the last event has ``tree`` or ``failure``.

        Args:
            incarnation: which.
            checkpoint: from which.
            put_files_back: whether its user has said that the files of a save point
                come back, too; what is newer is put beside them.
        """

    def nap(
        self,
        incarnation: str,
        *,
        seen: float | None = None,
    ) -> AsyncIterator[Event]:
        """Move a tree's GPU memory out; the last event has ``tree`` or ``failure``.

        It runs on: its server answers, and whatever is sent to a program that was
        stopped wakes it, without an order. A nap that fails leaves it running.
        ``seen`` as of :meth:`capture`.
        """

    def wake(self, incarnation: str) -> AsyncIterator[Event]:
        """Move a tree's GPU memory back; the last event has ``tree`` or ``failure``.

        If that fails, the tree stays napping; its agent tries again by itself.
        """

    def next_wake(self, incarnation: str) -> AsyncIterator[Event]:
        """Follow the wake under way, or the next one, whoever has begun it.

        No order is given. Empty if none begins for a while: ask again.
        """

    async def thaw(self, incarnation: str) -> Tree:
        """Thaw a captured tree; its checkpoint is discarded."""

    async def release(self, incarnation: str, checkpoint: str) -> Tree:
        """End a captured tree; refused unless that checkpoint is committed."""

    async def kill(self, incarnation: str) -> Tree:
        """End an orphan; refused while a capture runs."""

    async def cancel(self, incarnation: str) -> None:
        """Cancel a running capture, save, nap or wake."""

    async def checkpoints(self, key: SessionKey | None = None) -> list[CheckpointInfo]:
        """Return the committed checkpoints; with a ``key``, only that session's."""

    async def identity(self, checkpoint: str) -> Identity:
        """Return the login inside a checkpoint."""

    async def discard(self, checkpoint: str, *, runs: str = "") -> None:
        """Delete a checkpoint; idempotent.

        Args:
            checkpoint: its id.
            runs: the incarnation that came from it; the order is refused if that does
                not run any more when it arrives.
        """

    async def mark(self, checkpoint: str, said: Mark, word: int) -> None:
        """Seal a word about a checkpoint beside it; idempotent.

        ``CheckpointInfo.mark`` tells of it then.

        Args:
            checkpoint: its id.
            said: the word.
            word: its number; of two of one service the higher one counts, and the lower
                one is refused where it comes later.
        """


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


class HubFacts(Protocol):
    """The Hub's last answers about users and servers."""

    def groups(self, user: str) -> list[str] | None:
        """Return the groups of a user; None: not known."""

    def options(self, key: SessionKey) -> dict[str, list[str]] | None:
        """Return the options a server was started with, as texts; None: not known."""

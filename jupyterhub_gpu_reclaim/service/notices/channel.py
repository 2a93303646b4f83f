"""Interface of a channel for notices: webhook or mail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.service.notices.notice import Notice


class NotSent(Exception):
    """A notice was not taken; the text is for the log and holds no secret.

    Args:
        why: what happened.
        retryable: whether another try may help.
    """

    def __init__(self, why: str, *, retryable: bool) -> None:
        super().__init__(why)
        self.retryable = retryable


class Channel(Protocol):
    """One channel. A notice may come twice, with the same id, after a crash."""

    name: str

    async def send(self, notice: Notice) -> None:
        """Send it; ``NotSent`` if it was not taken. Limited in time."""

    def close(self) -> None:
        """Close what is open."""

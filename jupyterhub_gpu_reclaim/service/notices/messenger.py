"""Notices through Apprise: e-mail, Slack, Teams, Matrix and a hundred more.

Apprise (https://github.com/caronc/apprise) is an optional extra. Its addresses hold
tokens, so they are in a file and are never logged. It retries nothing.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jupyterhub_gpu_reclaim.service.notices.notice import NotSent
from jupyterhub_gpu_reclaim.service.notices.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.service.notices.notice import Notice

#: Characters that end one receiver and begin another, to Apprise.
_SEPARATOR = re.compile(r"[\s,;:\[\]<>\"']")


class Messenger:
    """Sends to every address.

    Args:
        addresses: Apprise's URLs; ``{user}`` stands for the session's user.
        limit: seconds for each step of a request.

    Raises:
        ImportError: Apprise is not installed.
        ValueError: Apprise knows no such address; the text says which line, not what.
    """

    name = "messenger"

    def __init__(self, addresses: Sequence[str], limit: float) -> None:
        import apprise  # noqa: PLC0415 an optional extra

        self._apprise = apprise
        self._addresses = tuple(addresses)
        self._limit = limit
        for number, address in enumerate(addresses, 1):
            if not apprise.Apprise().add(_for_user(address, "user")):
                raise ValueError(f"address {number} is none that Apprise knows")

    async def send(self, notice: Notice) -> None:
        """Send a notice to all addresses at once.

        Raises:
            NotSent: one of them has not taken it; which one, Apprise does not say. Or
                the user's name fits into none.
        """
        link = f"\n{notice.link}" if notice.link else ""
        text = f"{notice.sentence}\n\n{notice.advice}{link}"
        sender = self._sender(notice.session.user)
        if not sender:
            raise NotSent("the user's name fits into no address", retryable=False)
        taken = False

        def deliver() -> None:
            nonlocal taken
            form = self._apprise.NotifyFormat.TEXT
            taken = bool(sender.notify(text, title=notice.subject, body_format=form))

        try:
            async with asyncio.timeout(3 * self._limit):
                await in_thread(deliver)
        except TimeoutError:
            raise NotSent("no answer in time", retryable=True) from None
        if not taken:
            raise NotSent("an address has not taken it", retryable=True)

    def close(self) -> None:
        """Close nothing: nothing is open between two messages."""

    def _sender(self, user: str) -> Any:
        sender = self._apprise.Apprise()
        for address in self._addresses:
            if _fits(user, address):
                sender.add(_for_user(address, user))
        for each in sender:
            each.socket_connect_timeout = each.socket_read_timeout = self._limit
        return sender


def _for_user(address: str, user: str) -> str:
    """The address with that user in it; a name cannot become another part of it."""
    return address.replace("{user}", quote(user, safe=""))


def _fits(user: str, address: str) -> bool:
    """Whether the name would be that one receiver there, and nobody else."""
    if "{user}" not in address:
        return True
    if _SEPARATOR.search(user) or ("@" in user and "{user}@" in address):
        return False
    return user.isascii() or not address.startswith("mailto")

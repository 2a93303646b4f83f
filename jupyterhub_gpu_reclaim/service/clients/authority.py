"""Authority over the agents: the term of our lease (``common/term.py``).

An agent that has seen a higher term refuses us. Then another service has the journal;
or the journal is a backup, or was lost, and its lease counts from there. As long as the
lease is ours, its term is raised above what that agent has seen, and it is asked again.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.common.errors import Refused, StoreError, Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.term import TERM

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from jupyterhub_gpu_reclaim.controlplane.journal.lease import Lease

T = TypeVar("T")

#: Attempts of one request: two installations with the same agents outbid each other.
_TRIES = 3


class Authority:
    """The authority of our requests.

    Args:
        lease: ours; None: a person's, who only looks.
    """

    def __init__(self, lease: Lease | None = None) -> None:
        self._lease = lease

    def headers(self) -> dict[str, str]:
        """The headers that tell each request's authority."""
        return {} if self._lease is None else {TERM: str(self._lease.stamp)}

    async def ask(self, once: Callable[[], Awaitable[T]]) -> T:
        """Make a request, and raise our term where an agent has seen a higher one.

        Raises:
            Unreachable: ``journal_held``; or the term cannot be raised.
        """
        for _ in range(_TRIES):
            try:
                return await once()
            except Refused as refusal:
                self._rise(refusal)
        raise self._outbid()

    async def stream(
        self, once: Callable[[], AsyncGenerator[T, None]]
    ) -> AsyncIterator[T]:
        """Stream the lines that answer a request, and raise our term likewise."""
        for _ in range(_TRIES):
            try:
                async with aclosing(once()) as lines:
                    async for line in lines:
                        yield line
            except Refused as refusal:
                self._rise(refusal)
            else:
                return
        raise self._outbid()

    def _rise(self, refusal: Refused) -> None:
        """Raise our term above that of the refusal; any other one is raised again."""
        if refusal.reason is not Reason.FORMER_SERVICE or self._lease is None:
            raise refusal
        try:
            self._lease.rise(refusal.facts.get("obeyed", 0))
        except StoreError as error:
            raise Unreachable(Reason.AGENT_UNREACHABLE, detail=str(error)) from None

    def _outbid(self) -> Unreachable:
        what = "another service, with a journal of its own, orders it about as well"
        return Unreachable(Reason.AGENT_UNREACHABLE, detail=what)

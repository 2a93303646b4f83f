"""Authority over the agents: the term in our journal (``common/term.py``).

An agent that has seen a higher term refuses us. Then another service has the journal;
or the journal is a backup, or was lost, and counts from there. As long as the journal
is ours, its term is raised above what that agent has seen, and it is asked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.common.errors import Refused, StoreError, Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.term import TERM

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from jupyterhub_gpu_reclaim.controlplane.journal import Journal

T = TypeVar("T")

#: Attempts of one request: two installations with the same agents outbid each other.
_TRIES = 3


class Authority:
    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal

    def headers(self) -> dict[str, str]:
        """The headers that tell each request's authority."""
        return {} if self._journal is None else {TERM: str(self._journal.stamp)}

    def outrank(self, terms: Iterable[int]) -> None:
        """Raise our term above those in the store that are higher.

        The journal may be lost together with all that agents have kept of terms.

        Raises:
            Unreachable: the term cannot be raised.
        """
        for term in sorted(set(terms), reverse=True):
            if self._journal is not None and self._journal.term < term:
                self._rise(term)

    async def ask(self, once: Callable[[], Awaitable[T]]) -> T:
        """Make a request, and raise our term where an agent has seen a higher one.

        Raises:
            Unreachable: the term cannot be raised.
        """
        for _ in range(_TRIES):
            try:
                return await once()
            except Refused as refusal:
                if refusal.reason is not Reason.FORMER_SERVICE or not self._journal:
                    raise
                self._rise(refusal.facts.get("obeyed", 0))
        what = "another service, with a journal of its own, orders it about as well"
        raise Unreachable(Reason.AGENT_UNREACHABLE, detail=what)

    def _rise(self, above: int) -> None:
        try:
            if self._journal is not None:
                self._journal.rise(above)
        except StoreError as error:
            raise Unreachable(Reason.AGENT_UNREACHABLE, detail=str(error)) from None

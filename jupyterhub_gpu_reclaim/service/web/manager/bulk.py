"""Orders for many sessions at once: those that are selected, or all that are filtered.

Each order is the same call as that of one session's button, so the same rules hold. One
that is refused does not keep the others from it; the page says how many were, and why.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common import text as words
from jupyterhub_gpu_reclaim.common.errors import BadRequest, ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.web.manager.overview import (
    BULK_ORDERS,
    SessionsPage,
)
from jupyterhub_gpu_reclaim.service.web.manager.table import Wanted

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey, SessionView

_LIVE = frozenset(phase for phase in Phase if phase.live)
#: Order → the phases in which it makes sense, and what the page says of it.
_ORDERS: dict[str, tuple[frozenset[Phase], str]] = {
    "suspend": (_LIVE, "being suspended"),
    "nap": (frozenset({Phase.RUNNING}), "starting to nap"),
    "wake": (frozenset({Phase.NAPPING}), "waking"),
    "resume": (frozenset({Phase.SUSPENDED}), "resuming"),
    "keep": (_LIVE | {Phase.SUSPENDING}, "kept for an hour"),
}
_KEEP_SECONDS = 3600.0
#: Most refusals that the page tells one by one.
_TOLD = 5


class Bulk(SessionsPage):
    """A press of a button above the table."""

    async def post(self) -> None:
        """Give the order to each session, and say how that went on the same page.

        Raises:
            BadRequest: no such order, or nothing is selected.
        """
        order = self.get_body_argument("order", "")
        if order not in _ORDERS:
            raise BadRequest(Reason.INVALID, what="There is no such order.")
        wanted = Wanted.of(self.get_body_argument("query", ""))
        told = await self._give_order(order, self._chosen(order, wanted))
        if self.for_script:
            self.set_header("Content-Type", "application/json")
            self.finish(codec.encode(told))
        else:
            self.overview(wanted, told)

    def _chosen(self, order: str, wanted: Wanted) -> list[SessionView]:
        """The sessions that are meant, and for which it makes sense.

        Raises:
            BadRequest: no session is meant.
        """
        views = self.context.control.users.sessions()
        if self.get_body_argument("all", "") == "1":
            meant = [view for view in views if wanted.takes(view)]
        else:
            named = set(self.get_body_arguments("session"))
            meant = [view for view in views if str(view.key) in named]
        if not meant:
            raise BadRequest(Reason.INVALID, what="Select sessions first.")
        phases, _ = _ORDERS[order]
        return [view for view in meant if view.phase in phases]

    async def _give_order(self, order: str, views: list[SessionView]) -> str:
        """Give the order to each; returns what became of it, in sentences."""
        refused: list[str] = []
        for view in views:
            try:
                await self._order(view.key, order)
            except Unreachable:
                raise
            except ReclaimError as error:
                refused.append(f"{view.key}: {error.message}")
            await asyncio.sleep(0)  # the others' pages are answered meanwhile
        done = len(views) - len(refused)
        _, outcome = _ORDERS[order]
        if not views:
            return f"None of these sessions is in a state for '{BULK_ORDERS[order]}'."
        told = (
            f"{words.count(done, 'session')} {'is' if done == 1 else 'are'} {outcome}."
        )
        if not refused:
            return told
        more = "; …" if len(refused) > _TOLD else ""
        return f"{told} {len(refused)} not: {'; '.join(refused[:_TOLD])}{more}"

    async def _order(self, key: SessionKey, order: str) -> None:
        users, by = self.context.control.users, self.person.label
        match order:
            case "suspend":
                await users.suspend(key, by)
            case "nap":
                await users.nap(key, by)
            case "wake":
                await users.wake(key, by)
            case "resume":
                await users.resume(key, by, manages=True)
            case _:
                await users.keep(key, _KEEP_SECONDS, by, manages=True)


ROUTES = (("all/bulk", Bulk),)

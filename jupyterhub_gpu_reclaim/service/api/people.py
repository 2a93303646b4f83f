"""Calls of people and programs about sessions: list, show, suspend, resume, keep.

A user sees and steers their own sessions; the manage scope gives all. Nothing here
waits for an operation: it is begun, and the session's view shows its progress.
"""

from __future__ import annotations

from typing import Any, ClassVar

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.models import (
    AuditLine,
    Decision,
    Phase,
    SessionKey,
    SessionView,
    Value,
)
from jupyterhub_gpu_reclaim.common.node_status import no_return
from jupyterhub_gpu_reclaim.common.orders import ORDERS, Order
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api.base import Count, Forbidden, PersonRoute, Route
from jupyterhub_gpu_reclaim.service.api.openapi import Query, operation

#: Most lines of a session's history in one answer.
LONGEST_HISTORY = 1000


class Button(Value, frozen=True, kw_only=True):
    """An order that makes sense now, as people are offered it."""

    label: str
    done: str  #: what is said once it is given
    stops: bool  #: whether programs stop


class Offered(Value, frozen=True, kw_only=True):
    """The orders that the caller may give about a session as it is now."""

    orders: dict[str, Button]  #: by their kinds
    longest_keep: float  #: seconds from now on; 0: not at all


class ListSessions(PersonRoute):
    path: ClassVar = "api/sessions"

    @operation("List the sessions that you may see", answer=list[SessionView])
    async def get(self) -> None:
        views = self.context.control.users.sessions()
        mine = [view for view in views if self.person.may_see(view.key)]
        self.answer(sorted(mine, key=lambda view: view.key))


class ShowSession(PersonRoute):
    path: ClassVar = "api/sessions/{user}/{server}"
    for_tabs: ClassVar = True

    @operation("Show one session", answer=SessionView, errors=(404,))
    async def get(self, user: str, server: str) -> None:
        self.answer(self.context.control.users.session(self.key(user, server)))


class Why(PersonRoute):
    path: ClassVar = "api/sessions/{user}/{server}/why"
    for_tabs: ClassVar = True

    @operation(
        "Why it is suspended, or why not: the deciding reason first; of a suspended"
        " session, why it did not come back, and cannot be resumed at the moment",
        answer=list[Decision],
        errors=(404,),
    )
    async def get(self, user: str, server: str) -> None:
        users, key = self.context.control.users, self.key(user, server)
        found = list(users.why(key))
        view = users.session(key)
        if view.phase is Phase.SUSPENDED:
            if failure := view.failure:
                said = f"{failure.told} {failure.hint}".strip()
                found.append(Decision(reclaim=False, code=failure.code, message=said))
            held = no_return(self.context.nodes())
            found += [] if held is None else [held]
        self.answer(found)


async def give(route: PersonRoute, key: SessionKey, order: Order) -> Any:
    """Give an order in the name of the caller; returns before it is done.

    Raises:
        Forbidden: only managers may give it; or a tab may not.
        Unreachable: the Hub does not say whose the name is now.
    """
    person = route.person
    by_tab = person.only is not None
    if (order.needs_manager and not person.manages) or (order.needs_login and by_tab):
        raise Forbidden(Reason.FORBIDDEN)
    users = route.context.control.users
    if not person.manages:
        users.compare_account(key, await route.context.created(key.user))
    return await users.order(key, order, person.label, manages=person.manages)


def _route_of(kind: type[Order]) -> type[PersonRoute]:
    status = 202 if kind.begins else 200
    says = kind.says + ("; for administrators" if kind.for_managers else "")
    fields = kind if kind.__struct_fields__ else None

    class Given(PersonRoute):
        path: ClassVar = f"api/sessions/{{user}}/{{server}}/{kind.kind}"
        for_tabs: ClassVar = kind.for_tabs

        @operation(
            says, body=fields, answer=kind.answer, status=status, errors=(400, 404, 409)
        )
        async def post(self, user: str, server: str) -> None:
            key = self.key(user, server)
            said = self.request.body if fields else b""
            order = codec.decode(said or b"{}", kind)
            self.answer(await give(self, key, order), status)

    return Given


class Offers(PersonRoute):
    path: ClassVar = "api/sessions/{user}/{server}/orders"
    for_tabs: ClassVar = True

    @operation(
        "The orders that you may give about the session as it is now, and how long you"
        " may ask that it be left alone",
        answer=Offered,
        errors=(404,),
    )
    async def get(self, user: str, server: str) -> None:
        users, person = self.context.control.users, self.person
        view = users.session(self.key(user, server))
        found = {
            each.kind: Button(label=each.label, done=each.done, stops=each.stops)
            for each in ORDERS
            if each.fits(view)
            and (each.for_tabs or person.only is None)
            and (person.manages or not each.for_managers)
        }
        longest = users.longest_keep(manages=person.manages)
        self.answer(Offered(orders=found, longest_keep=longest))


class SessionHistory(PersonRoute):
    path: ClassVar = "api/sessions/{user}/{server}/history"

    @operation(
        "Who did what to the session, when and why; the newest first",
        answer=list[AuditLine],
        query=(Query("limit", Count, "At most that many lines; 100 by itself."),),
        errors=(404,),
    )
    async def get(self, user: str, server: str) -> None:
        key = self.key(user, server)
        self.context.control.users.session(key)
        limit = min(self.number("limit", 100), LONGEST_HISTORY)
        since = await self.seen_since(user)
        lines = self.context.control.users.audit(key, limit)
        self.answer([line for line in lines if line.at >= since])


ROUTES: tuple[type[Route], ...] = (
    ListSessions,
    ShowSession,
    Why,
    Offers,
    *map(_route_of, ORDERS),
    SessionHistory,
)

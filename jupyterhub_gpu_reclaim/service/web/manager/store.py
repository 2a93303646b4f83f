"""The page of the store: its room, and every checkpoint with its age and its owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jupyterhub_gpu_reclaim.common import text as words
from jupyterhub_gpu_reclaim.service.web.cards import ago, ahead
from jupyterhub_gpu_reclaim.service.web.health import store_fault, store_room
from jupyterhub_gpu_reclaim.service.web.manager.page import ManagerPage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jupyterhub_gpu_reclaim.common.models import KeptState, SessionKey, SessionView
    from jupyterhub_gpu_reclaim.service.web.cards import Moment

#: Most users, and checkpoints, that are listed.
MOST_SHOWN = 200
#: Order → its words, and what it sorts by.
ORDERS: dict[str, tuple[str, Callable[[Stored], Any]]] = {
    "size": ("Largest first", lambda one: -one.state.stored_bytes),
    "age": ("Oldest first", lambda one: one.state.created),
    "user": ("By user", lambda one: one.key),
    "end": (
        "Deleted soonest",
        lambda one: (one.state.expires is None, one.state.expires or 0.0),
    ),
}
#: Reason why a checkpoint is kept → its words.
_KEEPING = {
    "current": "the session is suspended",
    "superseded": "the session was resumed from it",
    "aside": "it was put aside",
}


@dataclass(frozen=True)
class Stored:
    """A checkpoint of a session."""

    key: SessionKey
    state: KeptState


@dataclass(frozen=True)
class StoredRow:
    """A checkpoint as the page prints it; ``url`` and names as a card has them."""

    id: str
    user: str
    name: str
    url: str
    created: Moment
    held: str
    stored: str
    keeping: str
    until: Moment | None
    deletable: bool
    other: bool  #: not what its session is suspended in


def stored(views: Iterable[SessionView], user: str, order: str) -> list[Stored]:
    """List the checkpoints of all users, or of one, in that order."""
    found = [
        Stored(view.key, state)
        for view in views
        for state in view.kept
        if user in {"", view.key.user}
    ]
    _, of = ORDERS[order]
    return sorted(found, key=lambda one: (of(one), one.key, one.state.generation))


class StorePage(ManagerPage):
    """The page."""

    async def get(self) -> None:
        """Show the page."""
        context, user = self.context, self.get_query_argument("user", "")
        order = self.get_query_argument("order", "size")
        order = order if order in ORDERS else "size"
        uses, now = context.control.store_use(), context.clock.now()
        most = max((use.stored_bytes for use in uses), default=0) or 1
        found = stored(context.control.users.sessions(), user, order)
        _, free = store_room(context.nodes())
        self.page(
            "store.html",
            done=self.done(),
            xsrf=self.xsrf(),
            free=free,
            fault=store_fault(context.nodes()),
            user=user,
            order=order,
            query=urlencode({"user": user, "order": order}),
            orders={name: title for name, (title, _) in ORDERS.items()},
            found=len(found),
            rows=[_row(one, now) for one in found[:MOST_SHOWN]],
            uses=[
                (
                    use.user,
                    use.checkpoints,
                    words.size(use.logical_bytes),
                    words.size(use.stored_bytes),
                    round(100 * use.stored_bytes / most, 1),
                )
                for use in uses[:MOST_SHOWN]
            ],
            users=len(uses),
            checkpoints=sum(use.checkpoints for use in uses),
            stored=words.size(sum(use.stored_bytes for use in uses)),
            logical=words.size(sum(use.logical_bytes for use in uses)),
        )


def _row(one: Stored, now: float) -> StoredRow:
    state = one.state
    return StoredRow(
        id=state.id,
        user=one.key.user,
        name=one.key.server or "Default server",
        url=f"sessions/{one.key.path}",
        created=ago(state.created, now),
        held=words.size(state.logical_bytes),
        stored=words.size(state.stored_bytes),
        keeping=_KEEPING.get(state.keeping, state.keeping),
        until=None if state.expires is None else ahead(state.expires, now),
        deletable=state.deletable,
        other=state.keeping != "current",
    )


ROUTES = (("store", StorePage),)

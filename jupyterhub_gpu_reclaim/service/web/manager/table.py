"""The managers' table: filter, order and one page of the sessions.

Pure. The whole table is never sent: ten thousand rows would hang a browser.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.service.web.cards import state_of, wasted, work
from jupyterhub_gpu_reclaim.service.web.manager.card_groups import CardGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from jupyterhub_gpu_reclaim.common.models import SessionView
    from jupyterhub_gpu_reclaim.common.node_status import NodeHealth
    from jupyterhub_gpu_reclaim.service.web.manager.card_groups import CardGroup

#: Rows of one page.
ROWS = 50
#: Longest text that is looked for.
LONGEST = 100
_NEVER = float("inf")


def _why(view: SessionView) -> str:
    live = view.phase.live and view.verdict is not None
    return view.verdict.code if live and view.verdict else ""


def _memory(view: SessionView) -> float:
    return -sum(gpu.memory or 0 for gpu in view.gpus) if view.gpus else _NEVER


def _percent(view: SessionView) -> float:
    percent = view.usage.gpu_percent if view.usage and view.gpus else None
    return _NEVER if percent is None else -percent


def _idle_since(view: SessionView) -> float:
    at = view.usage.last_active if view.usage and view.phase.live else None
    return _NEVER if at is None or work(view) else at


def _wasted(view: SessionView) -> float:
    return -wasted(view) or _NEVER


def _due(view: SessionView) -> float:
    if not view.phase.live:
        return _NEVER
    at = view.suspends_at or (view.verdict.at if view.verdict else None)
    return _NEVER if at is None else at


def _saved(view: SessionView) -> float:
    return -view.last_suspend.created if view.last_suspend else _NEVER


#: Column → what it is sorted by, the usual interest first: the most, the longest.
SORTS: dict[str, tuple[str, Callable[[SessionView], float | str]]] = {
    "session": ("Session", lambda view: str(view.key)),
    "state": ("State", lambda view: state_of(view.phase)),
    "node": ("Node", lambda view: view.facts.node),
    "gpu": ("GPU", _memory),
    "use": ("GPU use", _percent),
    "idle": ("Idle for", _idle_since),
    "wasted": ("Wasted", _wasted),
    "due": ("Suspends", _due),
    "saved": ("Last suspended", _saved),
    "why": ("Reason", _why),
}

#: Columns that have the largest, longest or newest first.
_FALLING = {"gpu", "use", "idle", "wasted", "saved"}
#: Sort column by default: what is worth a look comes first.
DEFAULT_SORT = "wasted"


@dataclass(frozen=True)
class Wanted:
    """Filter, order and page from an address; invalid parts are ignored."""

    text: str = ""
    state: str = ""
    node: str = ""
    why: str = ""
    sort: str = DEFAULT_SORT
    down: bool = False  #: whether the order is reversed
    by: str = ""  #: "card": the rows are listed below their card
    page: int = 1

    @classmethod
    def of(cls, query: str) -> Wanted:
        """Read it from an address's query."""
        given = dict(parse_qsl(query, errors="replace"))
        page = given.get("page", "1")
        return cls(
            text=given.get("text", "").strip()[:LONGEST],
            state=given.get("state", "") if given.get("state") in set(Phase) else "",
            node=given.get("node", ""),
            why=given.get("why", ""),
            sort=given["sort"] if given.get("sort") in SORTS else DEFAULT_SORT,
            down=given.get("down") == "1",
            by="card" if given.get("by") == "card" else "",
            page=int(page)
            if page.isascii() and page.isdigit() and page < "9" * 9
            else 1,
        )

    def query(self, **changes: object) -> str:
        """The query with changes; a change leads to page 1."""
        changed: dict[str, Any] = {"page": 1, **changes}
        wanted = replace(self, **changed)
        values: Mapping[str, object] = {
            "text": wanted.text,
            "state": wanted.state,
            "node": wanted.node,
            "why": wanted.why,
            "sort": wanted.sort if wanted.sort != DEFAULT_SORT else "",
            "down": "1" if wanted.down else "",
            "by": wanted.by,
            "page": wanted.page if wanted.page > 1 else "",
        }
        return urlencode({name: value for name, value in values.items() if value})

    @property
    def order(self) -> str:
        """The direction of the sorted column, for ``aria-sort``."""
        return "descending" if self.down ^ (self.sort in _FALLING) else "ascending"

    def sorted_by(self, column: str) -> str:
        """The link in a column's head: the other direction if it is sorted."""
        return self.query(sort=column, down=column == self.sort and not self.down)

    def takes(self, view: SessionView) -> bool:
        """Whether that session passes the filter."""
        return (
            self.state in {"", view.phase.value}
            and self.node in {"", view.facts.node}
            and self.why in {"", _why(view)}
            and all(word in _text(view) for word in self.text.casefold().split())
        )


@dataclass(frozen=True)
class Choice:
    """A value of a filter, and how many sessions have it."""

    value: str
    words: str
    count: int


@dataclass(frozen=True)
class Table:
    """A page of the sessions."""

    views: list[SessionView]
    groups: list[CardGroup]  #: the rows by card; empty where that is not wanted
    known: int
    found: int
    page: int
    pages: int
    nodes: list[Choice]
    whys: list[Choice]

    @property
    def first(self) -> int:
        """Number of the first row, from 1 on."""
        return (self.page - 1) * ROWS + 1 if self.found else 0

    @property
    def last(self) -> int:
        """Number of the last row."""
        return min(self.page * ROWS, self.found)


def table(
    views: Sequence[SessionView], wanted: Wanted, nodes: Sequence[NodeHealth] = ()
) -> Table:
    """Make the requested page, or the last one if there are fewer.

    Args:
        views: all sessions.
        wanted: which of them, and in which order.
        nodes: the known facts about their cards.
    """
    found = [view for view in views if wanted.takes(view)]
    found.sort(key=lambda view: view.key)
    if wanted.sort != "session":
        _, of = SORTS[wanted.sort]
        # what has no value stays at the end, whichever way it is sorted
        known = [view for view in found if of(view) not in {_NEVER, ""}]
        known.sort(key=of, reverse=wanted.down)
        found = known + [view for view in found if of(view) in {_NEVER, ""}]
    elif wanted.down:
        found.reverse()
    cards = CardGroups(views, nodes)
    if wanted.by:
        found.sort(key=cards.rank)
    pages = max(1, -(-len(found) // ROWS))
    page = min(max(wanted.page, 1), pages)
    shown = found[(page - 1) * ROWS : page * ROWS]
    return Table(
        views=shown,
        groups=cards.of(shown) if wanted.by else [],
        known=len(views),
        found=len(found),
        page=page,
        pages=pages,
        nodes=_choices(view.facts.node for view in views),
        whys=_choices(_why(view) for view in views),
    )


def _choices(values: Iterable[str]) -> list[Choice]:
    counts = Counter(value for value in values if value)
    return [Choice(v, v.replace("_", " "), n) for v, n in sorted(counts.items())]


def _text(view: SessionView) -> str:
    """The text that is searched."""
    message = view.verdict.message if _why(view) and view.verdict else ""
    failure = view.failure.message if view.failure else ""
    gpus = " ".join(gpu.name for gpu in view.gpus)
    return f"{view.key} {view.facts.node} {gpus} {message} {failure}".casefold()

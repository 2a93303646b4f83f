"""The managers' first page: totals, and the table of all sessions.

The table is filtered, sorted and cut here (``table.py``), so that a browser gets one
page of it; its script fetches only the changed parts. Everything works without scripts,
too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from jupyterhub_gpu_reclaim.common import text as words
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model import accounting
from jupyterhub_gpu_reclaim.service.web.cards import state_of
from jupyterhub_gpu_reclaim.service.web.manager.page import ManagerPage
from jupyterhub_gpu_reclaim.service.web.manager.table import SORTS, Wanted, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.models import SessionKey, SessionView
    from jupyterhub_gpu_reclaim.controlplane.model.accounting import GpuCount
    from jupyterhub_gpu_reclaim.controlplane.sessions.totals import StoreUse

#: Orders for many sessions (``bulk.py``), and their buttons.
BULK_ORDERS = {
    "suspend": "Suspend",
    "nap": "Nap",
    "wake": "Wake up",
    "resume": "Resume",
    "keep": "Keep for 1 h",
}
#: GPUs by state: the words for them, what they mean, and the name of their colour.
_GPUS = (
    (accounting.IN_USE, "GPUs in use", "", "in-use"),
    (accounting.IDLE, "GPUs idle", "held, not used", "idle"),
    (accounting.FREED, "GPUs freed", "by suspended sessions", "freed"),
)
#: Most waiting sessions that are listed.
_MOST_SHOWN = 200


@dataclass(frozen=True)
class Number:
    """A number at the top of the page."""

    value: str
    words: str
    about: str = ""
    name: str = ""  #: name of its colour


@dataclass(frozen=True)
class Waiter:
    """A session that waits for a GPU."""

    place: int
    key: SessionKey
    waits: str  #: waiting time; empty where it is not known


class SessionsPage(ManagerPage):
    """The values that the whole page and its parts print."""

    def overview(self, wanted: Wanted, done: str) -> None:
        """The whole page, with what a form has just done."""
        views = self.context.control.users.sessions()
        self.page(
            "overview.html",
            done=done,
            orders=BULK_ORDERS,
            **self.summary(views),
            **self.table(views, wanted),
        )

    def table(self, views: Sequence[SessionView], wanted: Wanted) -> dict[str, Any]:
        """The values that the table's template prints."""
        found = table(views, wanted, self.context.nodes())
        columns = dict(SORTS)
        if not found.nodes:
            del columns["node"]
        return {
            "wanted": wanted,
            "table": found,
            "groups": [(group, self.cards(group.views)) for group in found.groups]
            or [(None, self.cards(found.views))],
            "columns": {name: title for name, (title, _) in columns.items()},
            "states": [(phase.value, state_of(phase)) for phase in Phase],
            "xsrf": self.xsrf(),
        }

    def summary(self, views: Sequence[SessionView]) -> dict[str, Any]:
        """The values that the template of the totals prints."""
        control, now = self.context.control, self.context.clock.now()
        phases = Counter(view.phase for view in views)
        return {
            "numbers": [
                *_gpus(control.gpus()),
                Number(_hours(control.gpu_seconds() / 3600), "GPU-hours given back"),
                _stored(control.store_use()),
            ],
            "phases": [
                (phase.value, state_of(phase), phases[phase])
                for phase in Phase
                if phases[phase] and phase is not Phase.STOPPED
            ],
            "crowded": [
                Reason.GPU_CROWDED.sentence(
                    card=f"{card.name} ({uuid})", wakes=card.wakes
                )
                for uuid, card in sorted(control.crowded().items())
            ],
            "waiters": _waiters(views, now),
        }


class Overview(SessionsPage):
    """The whole page."""

    async def get(self) -> None:
        """Show the page."""
        self.overview(Wanted.of(self.request.query), self.done())


class Part(SessionsPage):
    """The table or the totals alone, for the script that keeps the page up to date."""

    is_page: ClassVar = False

    async def get(self, part: str) -> None:
        """Show the part."""
        views = self.context.control.users.sessions()
        wanted = Wanted.of(self.request.query)
        if part == "table":
            self.page("table.html", **self.table(views, wanted))
        else:
            self.page("summary.html", wanted=wanted, **self.summary(views))


def _hours(count: float) -> str:
    """Write hours as whole ones, and with tenths where there are few."""
    return f"{count:,.{0 if count >= 10 else 1}f}" if count else "0"


def _gpus(counts: Sequence[GpuCount]) -> list[Number]:
    """How many GPUs are used, held for nothing, and free by suspends."""
    found: dict[str, float] = defaultdict(float)
    for one in counts:
        state = accounting.IDLE if one.state == accounting.KEPT else one.state
        found[state] += one.number
    return [
        Number(f"{found[state]:g}", words, about, name)
        for state, words, about, name in _GPUS
    ]


def _stored(uses: Sequence[StoreUse]) -> Number:
    stored = sum(use.stored_bytes for use in uses)
    return Number(words.size(stored), "in the store", "of all sessions")


def _waiters(views: Sequence[SessionView], now: float) -> list[Waiter]:
    """List the GPU queue, the first session first."""
    waiters = []
    for view in views:
        place, since = view.facts.place, view.facts.waiting_since
        if place:
            waits = words.duration(now - since) if since else ""
            waiters.append(Waiter(place, view.key, waits))
    return sorted(waiters, key=lambda one: one.place)[:_MOST_SHOWN]


ROUTES = (("all", Overview), ("all/(table|summary)", Part))

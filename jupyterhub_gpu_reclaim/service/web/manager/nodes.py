"""The page of nodes: each agent, its machine, and who holds what on its cards.

``card_bars`` is pure. What a session holds comes from its samples, what is free from
the card itself; the rest is held by programs that are no session's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from jupyterhub_gpu_reclaim.common import text as words
from jupyterhub_gpu_reclaim.common.drain import HERE, DrainOrder
from jupyterhub_gpu_reclaim.controlplane.sessions.totals import WORKING_PERCENT
from jupyterhub_gpu_reclaim.service.api.operators import node_of
from jupyterhub_gpu_reclaim.service.web.health import called
from jupyterhub_gpu_reclaim.service.web.manager.page import ManagerPage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.drain import DrainReport
    from jupyterhub_gpu_reclaim.common.models import Finding, SessionView
    from jupyterhub_gpu_reclaim.common.node_status import CardStatus, NodeHealth


@dataclass(frozen=True)
class Holder:
    """A session on a card, or what no session holds there."""

    user: str  #: empty: programs that are no session's
    server: str
    url: str  #: address of the session's page, relative to the service
    about: str  #: "12 GB, idle for 2 h"
    tone: str  #: in-use, idle, napping or others
    at: float  #: where its part of the bar begins, in percent of the card
    width: float


@dataclass(frozen=True)
class CardBar:
    """A card with what is held there."""

    name: str
    id: str  #: the first digits of its uuid
    about: str  #: "60 GB of 80 GB used, 12 % busy"
    holders: list[Holder]


@dataclass(frozen=True)
class NodeCard:
    """A node as the page prints it."""

    node: str  #: as the table's filter names it
    name: str
    state: str
    tone: str
    facts: list[tuple[str, str]]
    faults: list[Finding]
    notes: list[Finding]
    cards: list[CardBar] | None  #: None: they do not answer
    sessions: int
    drain: DrainProgress | None  #: None: it is not being drained


@dataclass(frozen=True)
class DrainProgress:
    """The progress of a node's drain."""

    about: str  #: "Being drained by root since 2 min: 3 saved, 1 left."
    refused: list[str]  #: a sentence for each session that could not be suspended


def node_card(
    node: NodeHealth,
    views: Sequence[SessionView],
    now: float,
    prefix: str = "",
    report: DrainReport | None = None,
) -> NodeCard:
    """Describe a node for the page.

    Args:
        node: as it was heard of last.
        views: all sessions.
        now: seconds since the epoch.
        prefix: before the address of a session's page.
        report: how far its drain is; None: it is not being drained.
    """
    state, tone = _state(node, now)
    status, faults = node.status, node.faults
    on_node = [view for view in views if view.facts.node == node.node]
    cards = status.cards if status is not None else None
    return NodeCard(
        node=node.node,
        name=called(node.node),
        state=state,
        tone=tone,
        facts=_facts(node),
        faults=faults,
        notes=[]
        if status is None
        else [
            note for note in status.findings if note not in faults and not note.fatal
        ],
        cards=None
        if cards is None
        else [card_bar(card, views, now, prefix) for card in cards],
        sessions=sum(view.phase.live for view in on_node),
        drain=None if report is None else _progress(report, now),
    )


def _progress(report: DrainReport, now: float) -> DrainProgress:
    drain, sessions = report.drain, report.sessions
    saved = sum(each.state == "saved" for each in sessions)
    whose = drain.why or f"by {drain.by}"
    since = words.duration(now - drain.since)
    time_left = ""
    if drain.until is not None:
        time_left = f", {words.duration(max(0.0, drain.until - now))} left"
    counts = f"{saved} saved, {len(sessions) - saved} to go"
    return DrainProgress(
        about=f"Being drained ({whose}) for {since}{time_left}: {counts}.",
        refused=[
            f"{each.key}: {each.failure.told}"
            for each in sessions
            if each.failure is not None
        ],
    )


def _state(node: NodeHealth, now: float) -> tuple[str, str]:
    if node.silent_since is not None:
        return f"Silent for {words.duration(now - node.silent_since)}", "bad"
    if node.drain is not None:
        return "Closed until undrain", "warn"
    return ("Ready", "good") if node.ready else ("Cannot suspend sessions", "warn")


def _facts(node: NodeHealth) -> list[tuple[str, str]]:
    status = node.status
    if status is None:
        return []
    facts = {
        "Machine": status.host if status.host != node.node else "",
        "Agent": status.version,
        "CRIU": status.criu or "none that works",
        "GPU driver": status.driver,
        "Free in the state folder": _free(status.state_free),
        "Free in the store": _free(status.store_free, status.store_capacity),
    }
    return [(name, told) for name, told in facts.items() if told]


def _free(count: int | None, capacity: int | None = None) -> str:
    return "" if count is None else words.room(count, capacity)


def card_bar(
    card: CardStatus, views: Sequence[SessionView], now: float, prefix: str = ""
) -> CardBar:
    """Show a card: the sessions that hold it, the largest first, then all others."""
    total = card.total or 0
    used = None if card.free is None or not total else total - card.free
    held = sorted(
        (
            (sum(gpu.memory or 0 for gpu in view.gpus if gpu.uuid == card.uuid), view)
            for view in views
            if any(gpu.uuid == card.uuid for gpu in view.gpus)
        ),
        key=lambda one: (-one[0], one[1].key),
    )
    holders, at = [], 0.0
    for memory, view in held:
        width = 100 * memory / total if total else 0.0
        holders.append(
            _holder(view, _describe_use(view, memory, now), prefix, at, width)
        )
        at += width
    holders += [_napper(v, card, prefix, at) for v in views if _naps_on(v, card)]
    rest = (used or 0) - sum(memory for memory, _ in held)
    if total and rest > total / 100:
        about = f"{words.size(rest)}, programs of no session, and the driver"
        width = min(100 * rest / total, 100 - at)
        holders.append(Holder("", "", "", about, "others", _round(at), _round(width)))
    return CardBar(card.name or "GPU", card.uuid[:8], _used(card, used), holders)


def _used(card: CardStatus, used: int | None) -> str:
    parts = []
    if used is not None and card.total:
        parts.append(f"{words.size(used)} of {words.size(card.total)} used")
    if card.busy_percent is not None:
        parts.append(f"{card.busy_percent:.0f} % busy")
    if card.divided:
        parts.append("divided (MIG)")
    return ", ".join(parts) or "not known"


def _holder(
    view: SessionView, about: tuple[str, str], prefix: str, at: float, width: float
) -> Holder:
    return Holder(
        view.key.user,
        view.key.server or "Default server",
        f"{prefix}sessions/{view.key.path}",
        *about,
        _round(at),
        _round(width),
    )


def _describe_use(view: SessionView, memory: int, now: float) -> tuple[str, str]:
    """Say what an awake session does with its memory there; with the tone."""
    usage = view.usage
    percent = usage.gpu_percent if usage is not None else None
    if percent is None or percent >= WORKING_PERCENT:
        return words.size(memory), "in-use"
    idle = usage.last_active if usage is not None else None
    since = f", not used for {words.duration(now - idle)}" if idle is not None else ""
    return words.size(memory) + since, "idle"


def _naps_on(view: SessionView, card: CardStatus) -> bool:
    nap = view.facts.nap
    if not nap or any(gpu.uuid == card.uuid for gpu in view.gpus):
        return False
    return any(gpu.uuid == card.uuid for gpu in nap.gpus)


def _napper(view: SessionView, card: CardStatus, prefix: str, at: float) -> Holder:
    """Show a session that naps: it holds nothing there, and will again."""
    gpus = view.facts.nap.gpus if view.facts.nap else []
    memory = sum(gpu.memory or 0 for gpu in gpus if gpu.uuid == card.uuid)
    about = (f"naps, {words.size(memory)} moved out", "napping")
    return _holder(view, about, prefix, at, 0.0)


def _round(percent: float) -> float:
    return round(percent, 2)


class NodesPage(ManagerPage):
    """The whole page."""

    def nodes(self) -> list[NodeCard]:
        """The nodes, as the template prints them."""
        context = self.context
        views, now = context.control.users.sessions(), context.clock.now()
        drains = {each.drain.node: each for each in context.control.nodes.drains()}
        return [
            node_card(node, views, now, context.prefix, drains.get(node.node))
            for node in context.nodes()
        ]

    async def get(self) -> None:
        """Show the page."""
        self.page("nodes.html", nodes=self.nodes(), xsrf=self.xsrf())


class DrainButton(ManagerPage):
    """A press of a node's button; it works without scripts."""

    async def post(self, action: str) -> None:
        """Do the action and lead back to the page."""
        control, by = self.context.control, self.person.label
        node = self.get_body_argument("node", "")
        if action == "undrain":
            control.nodes.undrain(node, by)
        else:
            name = node_of(self.context.nodes(), node or HERE)
            hurried = self.get_body_argument("seconds", "")
            order = DrainOrder(seconds=self.seconds() if hurried else None)
            control.nodes.drain(name, order, by)
        self.redirect(f"{self.context.prefix}nodes", status=303)


class NodesPart(NodesPage):
    """The list of nodes alone, for the script that keeps the page up to date."""

    is_page: ClassVar = False

    async def get(self) -> None:
        """Show the list."""
        self.page("nodes_list.html", nodes=self.nodes(), xsrf=self.xsrf())


class HealthPart(ManagerPage):
    """The strip alone, likewise."""

    is_page: ClassVar = False

    async def get(self) -> None:
        """Show the strip."""
        self.page("health.html")


ROUTES = (
    ("nodes", NodesPage),
    ("nodes/list", NodesPart),
    ("nodes/(drain|undrain)", DrainButton),
    ("health", HealthPart),
)

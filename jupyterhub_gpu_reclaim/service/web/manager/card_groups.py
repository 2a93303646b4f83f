"""The managers' table by card: who holds what of each, and how much of that is wasted.

Pure. A session is listed below the card of which it holds most, so that it has one row;
at its other cards it is named. What a card has in all comes from its node.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common import text as words
from jupyterhub_gpu_reclaim.service.web.cards import byte_hours, wasted
from jupyterhub_gpu_reclaim.service.web.health import called

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.models import GpuSample, SessionView
    from jupyterhub_gpu_reclaim.common.node_status import NodeHealth


class CardId(NamedTuple):
    """A card, or an instance (MIG) of one."""

    uuid: str
    instance: int | None


@dataclass(frozen=True)
class CardGroup:
    """A card's line in the table, and the rows below it."""

    id: str  #: for the page's script
    name: str  #: "NVIDIA H200 a1a1a1a1 on gpu-1"
    about: str  #: "60 GB of 80 GB held by 2 sessions, 12 % busy"
    wasted: str  #: "40 GB·h", of all its sessions; empty: nothing
    also: str  #: sessions that hold some of it and are listed below another card
    views: list[SessionView]


class CardGroups:
    """The cards that sessions hold.

    Args:
        views: all sessions, also those that the filter leaves out.
        nodes: the known facts about their cards.
    """

    def __init__(
        self, views: Sequence[SessionView], nodes: Sequence[NodeHealth]
    ) -> None:
        self._known = {
            card.uuid: card
            for node in nodes
            if node.status is not None
            for card in node.status.cards or ()
        }
        self._holders: dict[CardId, list[SessionView]] = defaultdict(list)
        for view in views:
            for card in {_id(gpu) for gpu in view.gpus}:
                self._holders[card].append(view)
        self._wasted = {
            card: sum(wasted(view, _samples_on(view, card)) for view in holders)
            for card, holders in self._holders.items()
        }

    def rank(self, view: SessionView) -> tuple[bool, float, str, str]:
        """The sort key that puts a session to its card, that with most waste first."""
        card = _main_card(view)
        if card is None:
            return (True, 0.0, "", "")
        return (False, -self._wasted[card], view.facts.node, str(card))

    def of(self, views: Sequence[SessionView]) -> list[CardGroup]:
        """Split a page of the table, which is sorted by :meth:`rank`, by card."""
        return [
            self._group(card, list(rows)) for card, rows in groupby(views, _main_card)
        ]

    def _group(self, card: CardId | None, rows: list[SessionView]) -> CardGroup:
        if card is None:
            return CardGroup("none", "Without a GPU", "", "", "", rows)
        name = next(gpu.name for gpu in rows[0].gpus if _id(gpu) == card) or "GPU"
        title = f"{name} {card.uuid[:8]}"
        if card.instance is not None:
            title += f", instance {card.instance}"
        also = [
            f"{view.key} ({words.size(_held(view, card))})"
            for view in self._holders[card]
            if _main_card(view) != card
        ]
        return CardGroup(
            id=f"{card.uuid} {card.instance}",
            name=f"{title} on {called(rows[0].facts.node)}",
            about=self._about(card),
            wasted=byte_hours(self._wasted[card]),
            also=", ".join(also),
            views=rows,
        )

    def _about(self, card: CardId) -> str:
        holders = self._holders[card]
        held = sum(_held(view, card) for view in holders)
        # What is known of a card is of the whole of it.
        whole = self._known.get(card.uuid) if card.instance is None else None
        text = words.room(held, whole.total if whole is not None else None)
        text += f" held by {words.count(len(holders), 'session')}"
        if whole is not None and whole.busy_percent is not None:
            text += f", {whole.busy_percent:.0f} % busy"
        return text


def _samples_on(view: SessionView, card: CardId) -> list[GpuSample]:
    return [gpu for gpu in view.gpus if _id(gpu) == card]


def _id(gpu: GpuSample) -> CardId:
    return CardId(gpu.uuid, gpu.instance)


def _held(view: SessionView, card: CardId) -> int:
    return sum(gpu.memory or 0 for gpu in _samples_on(view, card))


def _main_card(view: SessionView) -> CardId | None:
    """The card of which it holds most; of equal ones the first by number."""
    cards = sorted({_id(gpu) for gpu in view.gpus}, key=str)
    return max(cards, key=lambda card: _held(view, card), default=None)

"""Selects the sessions that nap for those that wake and find their card full.

As few as are enough, and none if all of them together are not: no memory is moved in
vain. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import Phase, Value
from jupyterhub_gpu_reclaim.policy.idle import idle_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from jupyterhub_gpu_reclaim.common.models import Decision, SessionKey
    from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot


class RoomWant(Value, frozen=True, kw_only=True):
    """A waking session's need, beyond everything that is coming free."""

    key: SessionKey
    lacking: dict[str, int]  #: bytes by card; positive


def choose_for_room(
    snapshots: Iterable[SessionSnapshot],
    wants: Sequence[RoomWant],
    now: float,
    decide: Callable[[SessionSnapshot, float], Sequence[Decision]],
) -> dict[SessionKey, SessionKey]:
    """Choose the sessions that nap, and for whom; ``wants`` are in their order."""
    cards = {card for want in wants for card in want.lacking}
    able = [
        snapshot
        for snapshot in snapshots
        if snapshot.phase is Phase.RUNNING
        and held(snapshot, cards)
        and decide(snapshot, now)[0].reclaim
    ]
    chosen: dict[SessionKey, SessionKey] = {}
    for want in wants:
        left = [each for each in able if each.key not in {*chosen, want.key}]
        mine = _fewest_that_suffice(left, want.lacking, now)
        chosen.update(dict.fromkeys(mine, want.key))
    return chosen


def held(snapshot: SessionSnapshot, cards: Iterable[str]) -> int:
    return sum(gpu.memory or 0 for gpu in snapshot.gpus if gpu.uuid in cards)


def _fewest_that_suffice(
    able: Sequence[SessionSnapshot], lacking: Mapping[str, int], now: float
) -> list[SessionKey]:
    """As few as free enough of each card; none if all do not."""

    def order(snapshot: SessionSnapshot) -> tuple[float, SessionKey]:
        return -idle_for(snapshot, now) * held(snapshot, lacking), snapshot.key

    chosen: list[SessionSnapshot] = []
    for snapshot in sorted(able, key=order):
        open_cards = [
            card for card in lacking if _bytes_given(chosen, card) < lacking[card]
        ]
        if open_cards and held(snapshot, open_cards):
            chosen.append(snapshot)
    for snapshot in list(chosen):  # a later, larger one may have made it needless
        rest = [each for each in chosen if each is not snapshot]
        if all(_bytes_given(rest, card) >= count for card, count in lacking.items()):
            chosen = rest
    enough = all(_bytes_given(chosen, card) >= count for card, count in lacking.items())
    return [each.key for each in chosen] if enough else []


def _bytes_given(chosen: Iterable[SessionSnapshot], card: str) -> int:
    return sum(held(snapshot, (card,)) for snapshot in chosen)

"""Compares the GPUs that a checkpoint needs with those of this machine. Pure.

The requirements are stored in the operation's record and in the checkpoint. Cards are
named as the driver names them; nothing here queries the driver.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from jupyterhub_gpu_reclaim.common.models import Finding


class GpuCard(Value, frozen=True, kw_only=True):
    """One card that the session could see."""

    uuid: str  #: 32 hexadecimal digits
    name: str


class GpuUse(Value, frozen=True, kw_only=True):
    """What one process had on one card; the pid is that in the session's namespace."""

    pid: int
    uuid: str
    bytes: int


class Gpus(Value, frozen=True, kw_only=True):
    """A session's GPUs at its capture: the processes that the driver emptied.

    ``users`` are pids in the session's namespace, ``cards`` all that it could see: the
    driver wants each of them named when they change.
    """

    driver: str
    cards: list[GpuCard]
    users: list[int]
    uses: list[GpuUse]

    def bytes(self) -> int:
        """All of its GPU memory: about what its processes hold when it was emptied."""
        return sum(use.bytes for use in self.uses)

    def needed(self, pids: Collection[int]) -> dict[str, int]:
        """Bytes by card of those processes."""
        total: Counter[str] = Counter()
        for use in self.uses:
            if use.pid in pids:
                total[use.uuid] += use.bytes
        return dict(total)


def compare(
    there: Gpus, driver: str, here: Sequence[GpuCard], free: Mapping[str, int | None]
) -> Iterator[Finding]:
    """Why the session's GPUs cannot be filled here.

    Args:
        there: the session's.
        driver: this machine's driver.
        here: the cards of its new place.
        free: bytes by card, None where the card does not report it.
    """
    moves = plan_moves(there.cards, here, free)
    if moves is None:
        yield finding(
            Reason.GPU_MISMATCH,
            needed=_words(there.cards),
            here="there is " + (_words(here) or "no GPU"),
        )
        return
    if there.driver != driver:
        yield finding(Reason.GPU_DRIVER_MISMATCH, there=there.driver, here=driver)
    names = {card.uuid: card.name for card in here}
    for old, needed in sorted(there.needed(there.users).items()):
        new = moves.get(old, old)
        room = free.get(new)
        if room is not None and room < needed:
            yield finding(
                Reason.GPU_MEMORY,
                card=names.get(new, new),
                needed=size(needed),
                free=size(room),
            )


def plan_moves(
    there: Sequence[GpuCard],
    here: Sequence[GpuCard],
    free: Mapping[str, int | None],
) -> dict[str, str] | None:
    """Which card takes the place of which; None where there are not enough of a kind.

    A card that is still there keeps its place. The others go to those with most room.
    The driver copies memory as it is, so only the same model will do.
    """
    left = {card.uuid: card for card in here}
    moves = {}
    for card in there:
        same = left.get(card.uuid)
        if same is not None and same.name == card.name:
            moves[card.uuid] = left.pop(card.uuid).uuid
    for card in there:
        if card.uuid in moves:
            continue
        fitting = [other for other in left.values() if other.name == card.name]
        if not fitting:
            return None
        chosen = max(fitting, key=lambda other: (free.get(other.uuid) or 0, other.uuid))
        moves[card.uuid] = left.pop(chosen.uuid).uuid
    return moves


def pairs(moves: Mapping[str, str]) -> list[tuple[str, str]]:
    """As the driver takes them: every card, or none where all stay."""
    if all(old == new for old, new in moves.items()):
        return []
    return list(moves.items())


def _words(cards: Sequence[GpuCard]) -> str:
    counted = Counter(card.name for card in cards)
    return ", ".join(f"{count} x {name}" for name, count in sorted(counted.items()))

"""Takes one session's share out of the use of the machine's GPUs. Pure.

Anything unknown stays ``None``: a card that does not answer may be the one that a
session works on, so then nothing is known of any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.common.models import GpuSample, Value
from jupyterhub_gpu_reclaim.common.node_status import CardStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


N = TypeVar("N", int, float)


class ProcessUse(Value, frozen=True, kw_only=True):
    """A process on a card; the pid is the host's."""

    pid: int
    memory: int | None = None  #: bytes
    sm_percent: float | None = None  #: of the time its kernels ran
    mps: bool = False  #: whether it shares its card through NVIDIA's MPS


class CardUse(CardStatus, frozen=True, kw_only=True):
    """A card with what runs on it; a lost one has its place and nothing else."""

    processes: list[ProcessUse] | None = None


def samples_of(
    cards: list[CardUse] | None, pids: Collection[int]
) -> list[GpuSample] | None:
    """The cards that these processes use; None if unknown."""
    if cards is None or any(card.processes is None for card in cards):
        return None
    found = []
    for card in cards:
        uses = [use for use in card.processes or [] if use.pid in pids]
        if not uses:
            continue
        # Several processes take turns on it.
        percent = total(use.sm_percent for use in uses)
        found.append(
            GpuSample(
                uuid=card.uuid,
                name=card.name,
                memory=total(use.memory for use in uses),
                sm_percent=min(100.0, percent) if percent is not None else None,
            )
        )
    return found


def digits(uuid: str) -> str:
    """The digits of a UUID as the driver has it: ``GPU-e27adf4b-65b8-…``."""
    return uuid.removeprefix("GPU-").replace("-", "")


def total(values: Iterable[N | None]) -> N | None:
    """Their sum; None if one is unknown."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)

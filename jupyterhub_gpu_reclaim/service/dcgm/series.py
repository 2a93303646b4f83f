"""Reads the GPU use of pods from the series of NVIDIA's DCGM exporter. Pure.

The exporter names the pod to which Kubernetes has given a card, or an instance (MIG) of
one; so the card's use is that pod's.

What cannot be known stays unknown:

* a value that is blank, no number or out of its range, and one that is too old;
* a card that several pods have at the same time (time-slicing, MPS): which of them
  worked is unknown, unless the whole card did nothing;
* all cards of a pod of which there are more or fewer than it was given: one is lost, or
  the exporter still tells of a pod that had the same name before.

Each value is the largest in its time, since the exporter only looks now and then.
Names: https://github.com/NVIDIA/dcgm-exporter (etc/default-counters.csv,
internal/pkg/rendermetrics, internal/pkg/transformation).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from jupyterhub_gpu_reclaim.common.models import GpuSample
from jupyterhub_gpu_reclaim.sampling.gpu import digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class _Kind(NamedTuple):
    """What a metric measures, and how to convert it to our unit."""

    field: str
    factor: float
    most: float  #: the largest value that makes sense; blank ones are larger


_MIB: Final = 2.0**20
#: Part of the time in which kernels ran. A busy card may show in one of them only.
_USE: Final = "sm_percent"
_KINDS: Final = {
    "DCGM_FI_DEV_GPU_UTIL": _Kind(_USE, 1, 100),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": _Kind(_USE, 100, 1.01),
    "DCGM_FI_PROF_SM_ACTIVE": _Kind(_USE, 100, 1.01),
    "DCGM_FI_DEV_MEM_COPY_UTIL": _Kind("memory_percent", 1, 100),
    "DCGM_FI_PROF_DRAM_ACTIVE": _Kind("memory_percent", 100, 1.01),
    "DCGM_FI_DEV_FB_USED": _Kind("memory", _MIB, 2.0**24),
}
_UUID: Final = re.compile(r"[0-9a-f]{32}")
#: Longest name of a card that is believed to be one.
_NAME: Final = 100
#: Clocks of the service and of Prometheus may differ by so many seconds.
_AHEAD: Final = 5.0


class Series(msgspec.Struct, frozen=True):
    """One series over a while, as Prometheus answers: pairs of time and text."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class Names(NamedTuple):
    """The labels that hold a pod's namespace and its name."""

    namespace: str
    pod: str


class Owner(NamedTuple):
    """A pod."""

    namespace: str
    name: str


class _Card(NamedTuple):
    """A card, or one instance of it."""

    uuid: str
    instance: int | None


class _GpuUse:
    """The values of one card for one pod."""

    def __init__(self) -> None:
        self.name = ""
        self.first = math.inf
        self.last = -math.inf
        self.largest: dict[str, float] = {}
        self.told: dict[str, float] = {}  # when each was told last

    def add(self, kind: _Kind, values: Iterable[tuple[float, float]]) -> None:
        for at, value in values:
            self.first, self.last = min(self.first, at), max(self.last, at)
            if 0 <= value <= kind.most:
                old = self.largest.get(kind.field, 0.0)
                self.largest[kind.field] = max(old, value * kind.factor)
                self.told[kind.field] = max(self.told.get(kind.field, at), at)

    def known(self, field: str, since: float) -> float | None:
        """None where there is no value, or only an old one."""
        if self.told.get(field, -math.inf) < since:
            return None
        return self.largest[field]

    def overlaps(self, other: _GpuUse) -> bool:
        """Whether both pods had the card at the same time, not after each other."""
        return self.first <= other.last and other.first <= self.last


class ExporterAnswer:
    """One answer.

    Args:
        series: as Prometheus has them; what makes no sense in them is left out.
        names: the labels of a pod, those that are tried first before the others. The
            first that any series has are believed in all of them.
        at: when it was asked for, seconds since the epoch.
        span: seconds before that for which values are told.
    """

    def __init__(
        self, series: Sequence[Series], names: Iterable[Names], at: float, span: float
    ) -> None:
        self._cards: defaultdict[_Card, dict[Owner | None, _GpuUse]] = defaultdict(dict)
        self._of: defaultdict[Owner, set[_Card]] = defaultdict(set)
        chosen = _names_in(series, names)
        for one in series:
            kind, card = _KINDS.get(one.metric.get("__name__", "")), _card(one.metric)
            if kind is None or card is None:
                continue
            values = list(_numbers(one.values, at - span, at + _AHEAD))
            if values:
                use = self._use(card, _owner(one.metric, chosen))
                use.name = use.name or one.metric.get("modelName", "")[:_NAME]
                use.add(kind, values)

    def __bool__(self) -> bool:
        """Whether there is anything of use in it."""
        return bool(self._cards)

    def of(self, owner: Owner, count: int, since: float) -> list[GpuSample] | None:
        """What a pod does on its cards; None where that is not known.

        Args:
            owner: the pod.
            count: how many cards or instances it was given; 0: that is not known.
            since: what was told before says nothing; seconds since the epoch.
        """
        mine = [
            card
            for card in sorted(self._of.get(owner, ()), key=str)
            if self._cards[card][owner].last >= since
        ]
        if not mine or (count and len(mine) != count):
            return None
        return [self._sample(card, owner, since) for card in mine]

    def _use(self, card: _Card, owner: Owner | None) -> _GpuUse:
        if owner is not None:
            self._of[owner].add(card)
        return self._cards[card].setdefault(owner, _GpuUse())

    def _sample(self, card: _Card, owner: Owner, since: float) -> GpuSample:
        uses = self._cards[card]
        mine = uses[owner]
        shared = [
            use for other, use in uses.items() if other != owner and use.overlaps(mine)
        ]
        busy = mine.known(_USE, since)
        memory = mine.known("memory", since)
        rate = mine.known("memory_percent", since)
        if shared:
            idle = all(use.known(_USE, since) == 0 for use in (mine, *shared))
            busy, memory, rate = (0.0 if idle else None), None, None
        return GpuSample(
            uuid=card.uuid,
            name=mine.name,
            instance=card.instance,
            memory=None if memory is None else int(memory),
            sm_percent=None if busy is None else min(busy, 100.0),
            memory_percent=None if rate is None else min(rate, 100.0),
        )


def query(span: float, selector: str = "") -> str:
    """The one question, in PromQL: the values as they were scraped.

    Args:
        span: seconds that it reaches back.
        selector: more matchers, as ``cluster="one"``; empty: none.
    """
    names = "|".join(_KINDS)
    matchers = ",".join(part for part in (f'__name__=~"{names}"', selector) if part)
    return f"{{{matchers}}}[{max(1, int(span * 1000))}ms]"


def _names_in(series: Sequence[Series], names: Iterable[Names]) -> Names | None:
    for name in names:
        if any(_owner(one.metric, name) for one in series):
            return name
    return None


def _owner(labels: dict[str, str], names: Names | None) -> Owner | None:
    if names is None:
        return None
    namespace, pod = labels.get(names.namespace, ""), labels.get(names.pod, "")
    return Owner(namespace, pod) if namespace and pod else None


def _card(labels: dict[str, str]) -> _Card | None:
    uuid = digits(labels.get("UUID") or labels.get("uuid") or "").lower()
    instance = labels.get("GPU_I_ID", "")
    if not _UUID.fullmatch(uuid) or (instance and not _is_number(instance)):
        return None
    return _Card(uuid, int(instance) if instance else None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 5


def _numbers(
    values: Iterable[tuple[float, str]], since: float, until: float
) -> Iterator[tuple[float, float]]:
    """Those of the time that was asked for; what is no number is out of range."""
    for at, text in values:
        if not since <= at <= until:
            continue
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        yield at, value

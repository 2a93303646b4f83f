"""GPU use of sessions in pods, from the DCGM exporter through Prometheus.

Each round of samples starts a query next to the requests to the agents, and does not
wait
for it: a late answer counts in the next round, and values that are too old do not
count.
So a slow Prometheus delays no sample and drops none.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.http.client import Silent
from jupyterhub_gpu_reclaim.sampling.dcgm import Names, Owner, Told, query
from jupyterhub_gpu_reclaim.sampling.gpu import NO_ANSWER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import GpuSample, Sample
    from jupyterhub_gpu_reclaim.service.clients.pods import Pod
    from jupyterhub_gpu_reclaim.service.clients.prometheus import Prometheus

_log = logging.getLogger(__name__)

#: Values older than so many scrapes do not count.
STALE_SCRAPES = 3


class GpuUse:
    """The DCGM exporter's values, beside the agents'.

    Args:
        prometheus: the server to ask.
        clock: the time.
        first: whether its values go before the agents', not only where they have none.
        scrape: seconds between two scrapes of the exporter by Prometheus.
        names: the labels of a pod, see ``sampling.dcgm.Told``.
        selector: more matchers for the query.
    """

    def __init__(
        self,
        prometheus: Prometheus,
        clock: Clock,
        *,
        first: bool,
        scrape: float,
        names: Sequence[Names],
        selector: str = "",
    ) -> None:
        self._prometheus = prometheus
        self._clock = clock
        self._first = first
        self._span = STALE_SCRAPES * scrape
        self._names = names
        self._selector = selector
        self._asking: asyncio.Task[None] | None = None
        self._told: Told | None = None
        self._silent = False

    def ask(self) -> asyncio.Task[None]:
        """Start a query, unless one is under way; returns when it is answered."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return self._asking

    def complete(self, sample: Sample, pod: Pod) -> Sample:
        """A sample with the GPU use from both sources."""
        told, mine = self._of(pod), sample.gpus
        if told is None or (_is_known(mine) and not self._first):
            return sample
        if not _is_known(told):  # it may know the memory at least
            return (
                msgspec.structs.replace(sample, gpus=told) if mine is None else sample
            )
        problems = [part for part in sample.problem.split("; ") if part != NO_ANSWER]
        return msgspec.structs.replace(sample, gpus=told, problem="; ".join(problems))

    async def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        self._prometheus.close()

    def _of(self, pod: Pod) -> list[GpuSample] | None:
        if self._told is None:
            return None
        owner = Owner(pod.metadata.namespace, pod.metadata.name)
        # The pod before it may have had the same name, and another card.
        since = max(self._clock.now() - self._span, pod.created)
        return self._told.of(owner, pod.gpus, since)

    async def _ask(self) -> None:
        try:
            self._told = await self._look()
        except Silent as why:
            if not self._silent:
                self._silent = True
                _log.warning("- Prometheus does not tell of the GPUs: %s", why)
            return
        if self._silent:
            self._silent = False
            _log.info("- Prometheus tells of the GPUs again")

    async def _look(self) -> Told:
        """The exporter's newest values.

        Raises:
            Silent: there is no answer.
        """
        now = self._clock.now()
        text = query(self._span, self._selector)
        series = await self._prometheus.query(text, now)
        told = Told(series, self._names, now, self._span)
        if not told:
            raise Silent("it has no recent series of the DCGM exporter")
        return told


def _is_known(gpus: list[GpuSample] | None) -> bool:
    """Whether the sample has a utilisation for each card."""
    return gpus is not None and all(gpu.sm_percent is not None for gpu in gpus)

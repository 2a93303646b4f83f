"""What sessions in pods do on their GPUs, from outside of their nodes.

Asked by ``fleet.py`` for every round of samples. The question to Prometheus is begun
together with those to the agents and waited for by nobody: what has not come by then
counts in the next round, and what is too old by its own time counts no more. So a
Prometheus that is slow or down delays no sample and drops none.
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

#: Values older than so many scrapes say nothing of now.
STALE_SCRAPES = 3


class GpuUse:
    """The DCGM exporter's word on GPUs, beside the agents'.

    Args:
        prometheus: who is asked.
        clock: the time.
        first: whether its word goes before the agents', not only where they have none.
        scrape: seconds between two looks of Prometheus at the exporter.
        names: the labels of a pod, see ``sampling.dcgm.Told``.
        selector: more matchers for the question.
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
        """Begin to ask, unless an answer is awaited already; when that has come."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return self._asking

    def complete(self, sample: Sample, pod: Pod) -> Sample:
        """A sample with what is known of its GPUs by whoever knows it."""
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
        """Ask no more."""
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
        """What it tells now.

        Raises:
            Silent: nothing.
        """
        now = self._clock.now()
        text = query(self._span, self._selector)
        series = await self._prometheus.query(text, now)
        told = Told(series, self._names, now, self._span)
        if not told:
            raise Silent("it has no recent series of the DCGM exporter")
        return told


def _is_known(gpus: list[GpuSample] | None) -> bool:
    """Whether it says of each card how much it worked."""
    return gpus is not None and all(gpu.sm_percent is not None for gpu in gpus)

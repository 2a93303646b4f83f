"""GPU use of sessions in pods, from the DCGM exporter through Prometheus.

Each round of samples starts a query next to the requests to the agents, and does not
wait for it: a late answer counts in the next round, and values that are too old do not
count. So a slow Prometheus delays no sample and drops none.
"""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.http.client import Connection, NoResponse
from jupyterhub_gpu_reclaim.sampling.gpu import NO_ANSWER
from jupyterhub_gpu_reclaim.service.dcgm.series import (
    ExporterAnswer,
    Names,
    Owner,
    Series,
    query,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import GpuSample, Sample
    from jupyterhub_gpu_reclaim.service.clients.pods import Pod


_log = logging.getLogger(__name__)

#: Values older than so many scrapes do not count.
STALE_SCRAPES = 3


class DcgmUse:
    """The DCGM exporter's values, beside the agents'.

    Args:
        prometheus: the server to ask.
        clock: the time.
        first: whether its values go before the agents', not only where they have none.
        scrape: seconds between two scrapes of the exporter by Prometheus.
        names: the labels of a pod, see ``service.dcgm.series.ExporterAnswer``.
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
        self._told: ExporterAnswer | None = None
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
        except NoResponse as why:
            if not self._silent:
                self._silent = True
                _log.warning("- Prometheus does not tell of the GPUs: %s", why)
            return
        if self._silent:
            self._silent = False
            _log.info("- Prometheus tells of the GPUs again")

    async def _look(self) -> ExporterAnswer:
        """The exporter's newest values.

        Raises:
            NoResponse: there is no answer.
        """
        now = self._clock.now()
        text = query(self._span, self._selector)
        series = await self._prometheus.query(text, now)
        told = ExporterAnswer(series, self._names, now, self._span)
        if not told:
            raise NoResponse("it has no recent series of the DCGM exporter")
        return told


def _is_known(gpus: list[GpuSample] | None) -> bool:
    """Whether the sample has a utilisation for each card."""
    return gpus is not None and all(gpu.sm_percent is not None for gpu in gpus)


#: Longest answer, bytes: some thousand cards with half a dozen series each.
MAX_ANSWER: Final = 1 << 24
#: Characters of the server's own words that go into the log.
_WORDS: Final = 200
_TOKEN: Final = re.compile(r"[!-~]+")


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str
    result: list[Series] = []


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: _Data | None = None
    error: str = ""


class _Head(msgspec.Struct, frozen=True, rename="camel"):
    """An answer of any type, or an error."""

    status: str = ""
    error: str = ""


class Prometheus:
    """One server.

    Args:
        url: its address, with the path that it is served under, if any.
        token_file: file with a bearer token, read each time; empty: none.
        ca_file: certificates that vouch for it; empty: those of the system.
        seconds: that an answer may take.

    Raises:
        OSError: ``ca_file`` cannot be read or holds no certificate.
    """

    def __init__(
        self, url: str, *, token_file: str = "", ca_file: str = "", seconds: float
    ) -> None:
        self._token_file = token_file
        self._seconds = seconds
        self._connection = Connection(
            url, self._headers, ca_file=ca_file, most=MAX_ANSWER
        )

    def close(self) -> None:
        """Close the connection; a query under way gets no answer."""
        self._connection.close()

    async def query(self, text: str, at: float) -> list[Series]:
        """The answer to a range query.

        Args:
            text: in PromQL.
            at: the time that it is asked for, seconds since the epoch.

        Raises:
            NoResponse: there is none; why, with neither address nor token.
        """
        path = "/api/v1/query?" + urlencode({"query": text, "time": f"{at:.3f}"})
        try:
            answer = await self._connection.ask("GET", path, limit=self._seconds)
        except NoResponse as silent:
            raise NoResponse(f"no answer ({_last(silent)})") from None
        except OSError as error:
            raise NoResponse(f"its token cannot be read ({error.strerror})") from None
        except ValueError:
            raise NoResponse("its token is none") from None
        if answer.status != 200:
            raise NoResponse(
                f"HTTP status {answer.status} {_error(answer.body)}".strip()
            )
        return _series(answer.body)

    def _headers(self) -> dict[str, str]:
        if not self._token_file:
            return {}
        token = Path(self._token_file).read_text(encoding="ascii").strip()
        if not _TOKEN.fullmatch(token):
            raise ValueError  # what it is must not come into a log
        return {"Authorization": f"Bearer {token}"}


def _series(body: bytes) -> list[Series]:
    """What an answer holds.

    Raises:
        NoResponse: it is not what was asked for.
    """
    try:
        answer = codec.decode(body, _Answer)
    except BadRequest as error:
        raise NoResponse(f"not understood: {error.message[:_WORDS]}") from None
    if answer.status != "success" or answer.data is None:
        raise NoResponse(f"refused: {_printable(answer.error)}")
    if answer.data.result_type != "matrix":
        raise NoResponse("it answers something else than was asked")
    return answer.data.result


def _error(body: bytes) -> str:
    """The server's own words, if it has any."""
    try:
        return _printable(codec.decode(body, _Head).error)
    except BadRequest:
        return ""


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:_WORDS])


def _last(silent: NoResponse) -> str:
    """Why, without the path, which holds the whole query."""
    return str(silent).rpartition(": ")[2][:_WORDS]

"""Asks a Prometheus server one query at a time, over its HTTP API.

Also for servers with the same API (Thanos, Mimir, VictoriaMetrics). Its answers are
checked like any input from outside; one that is too long, too late or invalid counts as
none. https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.http.client import Connection, Silent
from jupyterhub_gpu_reclaim.sampling.dcgm import Series  # noqa: TC001 msgspec needs it

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
            Silent: there is none; why, with neither address nor token.
        """
        path = "/api/v1/query?" + urlencode({"query": text, "time": f"{at:.3f}"})
        try:
            # Not compressed: a short answer could become a very long one.
            answer = await self._connection.ask(
                "GET", path, limit=self._seconds, decompress_response=False
            )
        except Silent as silent:
            raise Silent(f"no answer ({_last(silent)})") from None
        except OSError as error:
            raise Silent(f"its token cannot be read ({error.strerror})") from None
        except ValueError:
            raise Silent("its token is none") from None
        if answer.status != 200:
            raise Silent(f"HTTP status {answer.status} {_error(answer.body)}".strip())
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
        Silent: it is not what was asked for.
    """
    try:
        answer = codec.decode(body, _Answer)
    except BadRequest as error:
        raise Silent(f"not understood: {error.message[:_WORDS]}") from None
    if answer.status != "success" or answer.data is None:
        raise Silent(f"refused: {_printable(answer.error)}")
    if answer.data.result_type != "matrix":
        raise Silent("it answers something else than was asked")
    return answer.data.result


def _error(body: bytes) -> str:
    """The server's own words, if it has any."""
    try:
        return _printable(codec.decode(body, _Head).error)
    except BadRequest:
        return ""


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:_WORDS])


def _last(silent: Silent) -> str:
    """Why, without the path, which holds the whole query."""
    return str(silent).rpartition(": ")[2][:_WORDS]

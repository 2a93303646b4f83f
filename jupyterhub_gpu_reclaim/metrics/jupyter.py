"""Asks a Jupyter server's own REST API, and understands its answers.

Called by ``activity`` for samples and by the agent around a restore. Every request
goes to the loopback address, is bounded in time and size, and can be told not to
count as activity. What a server answers is a user's word: it is decoded strictly,
and what does not fit is an error that names the call.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import quote

from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest

from jupyterhub_gpu_reclaim import wire
from jupyterhub_gpu_reclaim.errors import BadRequest, NotFound, Unreachable
from jupyterhub_gpu_reclaim.models import Value
from jupyterhub_gpu_reclaim.reasons import Reason

T = TypeVar("T")

#: No answer that we read is larger.
MAX_ANSWER_BYTES = 4 * 1024 * 1024


class Kernel(Value, frozen=True, kw_only=True):
    """An entry of ``GET api/kernels``."""

    id: str
    name: str = ""
    execution_state: str = "unknown"
    last_activity: datetime
    connections: int = 0


class Terminal(Value, frozen=True, kw_only=True):
    """An entry of ``GET api/terminals``."""

    name: str


class SessionKernel(Value, frozen=True, kw_only=True):
    """The kernel in an entry of ``GET api/sessions``."""

    id: str


class NotebookSession(Value, frozen=True, kw_only=True):
    """An entry of ``GET api/sessions``: which notebook has which kernel."""

    kernel: SessionKernel | None = None
    path: str = ""
    type: str = ""


class Contents(Value, frozen=True, kw_only=True):
    """``GET api/contents/<path>?content=0``."""

    last_modified: datetime


class Status(Value, frozen=True, kw_only=True):
    """``GET api/status``."""

    connections: int = 0


class Version(Value, frozen=True, kw_only=True):
    """``GET api``: the first thing that a server answers, without a login."""

    version: str = ""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a session's server listens, and what lets us in."""

    port: int
    prefix: str
    token: str


def make_client() -> AsyncHTTPClient:
    """A client of its own, with room for every session of a node at once."""
    return AsyncHTTPClient(
        force_instance=True, max_clients=512, max_body_size=MAX_ANSWER_BYTES
    )


async def ask(
    client: AsyncHTTPClient,
    address: Address,
    path: str,
    kind: type[T],
    *,
    seconds: float,
    track: bool = False,
) -> T:
    """``GET <prefix><path>`` as that type.

    Args:
        client: from :func:`make_client`.
        address: whom to ask, on 127.0.0.1.
        path: below the server's prefix, without a query; quoted here.
        kind: what the answer must be.
        seconds: how long it may take.
        track: whether the server may take this for a sign of use.

    Raises:
        NotFound: the server has no such thing.
        Unreachable: no answer, another error, or one that does not fit.
    """
    query = "" if track else "no_track_activity=1"
    if path.startswith("api/contents/"):
        query = "content=0&" + query
    url = f"http://127.0.0.1:{address.port}{address.prefix}{quote(path)}?{query}"
    request = HTTPRequest(
        url,
        headers={"Authorization": f"token {address.token}"},
        request_timeout=seconds,
        connect_timeout=seconds,
        follow_redirects=False,
    )
    try:
        response = await client.fetch(request)
        return wire.decode(response.body, kind)
    except (HTTPError, OSError, ValueError, BadRequest) as error:
        detail = f"{path}: {error}"
        if isinstance(error, HTTPError) and error.code == 404:
            raise NotFound(Reason.INVALID, what="Not there.", detail=detail) from None
        raise Unreachable(Reason.SAMPLES_MISSING, detail=detail) from None


def timestamp(moment: datetime) -> float:
    """Seconds since the epoch; a time without a zone is UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()

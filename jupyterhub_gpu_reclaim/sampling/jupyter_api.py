"""Calls a Jupyter server's own REST API, and decodes its answers.

Every request goes to the loopback address of the session's own network namespace, is
bounded in time and size, and does not count as activity. Answers are
controlled by the user: their lists and words are bounded by their types, and they are
decoded strictly. A caller that polls keeps the answers and asks only whether they have
changed (RFC 9110, 13.1.2): a server under JupyterHub notes every answer in the user's
own log, except a "304 Not Modified".
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import quote

import msgspec
from tornado.gen import with_timeout
from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest
from tornado.iostream import IOStream
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from tornado.tcpclient import TCPClient

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest, NotFound, Unreachable
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import netns

T = TypeVar("T")


class OtherAnswer(Unreachable):
    """An answer that no Jupyter server would give."""


LOOPBACK = "127.0.0.1"
#: Ends the name of a host that is a network namespace; no resolver ever sees it.
_SESSION = ".session"
#: Bytes of the largest answer that is read.
MAX_ANSWER_BYTES = 1024 * 1024
#: Most bytes of the answers of one server that are remembered, and most answers.
MAX_REMEMBERED_BYTES, MAX_REMEMBERED = 256 * 1024, 64
#: Longest detail of an error, in characters.
MAX_DETAIL = 300
#: A counter in an answer; larger numbers no float holds, and some have no float at all.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
#: A name, an id or a state in an answer.
Word = Annotated[str, msgspec.Meta(max_length=256)]
#: The path of a notebook; Linux knows none that is longer.
FilePath = Annotated[str, msgspec.Meta(max_length=4096)]


class Kernel(Value, frozen=True, kw_only=True):
    """An entry of ``GET api/kernels``."""

    id: Word
    name: Word = ""
    execution_state: Word = "unknown"
    last_activity: datetime
    connections: Count = 0
    #: since when its cell waits for an answer; told by our server extension alone
    gpu_reclaim_prompt_since: datetime | None = None


class Terminal(Value, frozen=True, kw_only=True):
    """An entry of ``GET api/terminals``."""

    name: Word


class SessionKernel(Value, frozen=True, kw_only=True):
    """The kernel in an entry of ``GET api/sessions``."""

    id: Word


class NotebookSession(Value, frozen=True, kw_only=True):
    """An entry of ``GET api/sessions``: which notebook has which kernel."""

    kernel: SessionKernel | None = None
    path: FilePath = ""
    type: Word = ""


def _at_most(count: int, kind: type[T]) -> type[list[T]]:
    limited: Any = Annotated[list[kind], msgspec.Meta(max_length=count)]  # type: ignore[valid-type]
    return cast("type[list[T]]", limited)


#: Lists in answers; bounds that are above what a person has open.
KERNELS = _at_most(256, Kernel)
TERMINALS = _at_most(256, Terminal)
NOTEBOOKS = _at_most(2048, NotebookSession)


class Contents(Value, frozen=True, kw_only=True):
    last_modified: datetime


class Status(Value, frozen=True, kw_only=True):
    connections: Count = 0
    started: datetime | None = None
    #: when a file was last changed through it; told by our server extension alone
    gpu_reclaim_file_changed: datetime | None = None
    #: when a person last changed something through a page of it; likewise
    gpu_reclaim_person_asked: datetime | None = None
    #: bytes that pages have sent to programs behind it; likewise
    gpu_reclaim_paged: Count | None = None
    #: seconds after which it ends idle kernels, or itself; likewise
    gpu_reclaim_culls_after: Count | None = None


class Version(Value, frozen=True, kw_only=True):
    """``GET api``: the first thing that a server answers, without a login."""

    version: Word = ""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of a session's server, and the token that lets us in."""

    # ``pid`` and ``start`` name a process (its init) in the server's network namespace.

    port: int
    prefix: str
    token: str
    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class TaggedAnswer:
    etag: str
    body: bytes


class _Connector(TCPClient):
    """Connects to servers in network namespaces, which a host's name tells."""

    async def connect(  # type: ignore[override]
        self, host: str, port: int, **options: Any
    ) -> IOStream:
        pid, start = map(int, host.removesuffix(_SESSION).split("-"))
        made = await asyncio.to_thread(
            netns.make_socket, pid, socket.AF_INET, socket.SOCK_STREAM, start=start
        )
        stream = IOStream(made, max_buffer_size=options["max_buffer_size"])
        limit = timedelta(seconds=options["timeout"])
        try:
            await with_timeout(limit, stream.connect((LOOPBACK, port)))
        except BaseException:
            stream.close()
            raise
        return stream


class _Client(SimpleAsyncHTTPClient):
    def initialize(self, **options: Any) -> None:  # type: ignore[override]
        super().initialize(**options)
        self.tcp_client = _Connector(resolver=self.resolver)


def make_client() -> AsyncHTTPClient:
    """A client with room for every session of a node at once."""
    # A server that does not answer holds its place for seconds; others do not wait.
    return _Client(
        force_instance=True, max_clients=10_000, max_body_size=MAX_ANSWER_BYTES
    )


async def ask(
    client: AsyncHTTPClient,
    address: ServerAddress,
    path: str,
    kind: type[T],
    *,
    seconds: float,
    query: str = "",
    known: dict[str, TaggedAnswer] | None = None,
) -> T:
    """Request ``GET <prefix><path>``, which the server does not count as use.

    ``known``: its answers so far, by path; changed here.

    Raises:
        NotFound: the server has no such thing.
        OtherAnswer: the answer leads elsewhere, forbids it, or does not fit.
        Unreachable: no answer, or a failure of the server.
    """
    query += "&no_track_activity=1"
    host = f"{address.pid}-{address.start}{_SESSION}:{address.port}"
    url = f"http://{host}{address.prefix}{quote(path)}?{query}"
    before = known.get(path) if known is not None else None
    headers = {
        "Authorization": f"token {address.token}",
        "Host": f"{LOOPBACK}:{address.port}",
    }
    if before is not None:
        headers["If-None-Match"] = before.etag
    request = HTTPRequest(
        url,
        headers=headers,
        request_timeout=seconds,
        connect_timeout=seconds,
        follow_redirects=False,
        decompress_response=False,
    )
    try:
        answer = await _fetch(client, request, before)
        decoded = codec.decode(answer.body, kind)
    except (HTTPError, OSError, ValueError, BadRequest) as error:
        # It may be the server's own, such as its status line.
        detail = f"{path[:MAX_DETAIL]}: {error}"[: 2 * MAX_DETAIL]
        if isinstance(error, HTTPError) and error.code == 404:
            raise NotFound(Reason.INVALID, what="Not there.", detail=detail) from None
        kind_of_error = OtherAnswer if _has_answered(error) else Unreachable
        raise kind_of_error(Reason.SAMPLES_MISSING, detail=detail) from None
    if known is not None:
        _remember(known, path, answer)
    return decoded


def _has_answered(error: Exception) -> bool:
    return not isinstance(error, HTTPError | OSError) or (
        isinstance(error, HTTPError) and 300 <= error.code < 500
    )


def _remember(known: dict[str, TaggedAnswer], path: str, answer: TaggedAnswer) -> None:
    known.pop(path, None)
    if answer.etag:
        known[path] = answer
    size = sum(len(p) + len(one.etag) + len(one.body) for p, one in known.items())
    while len(known) > MAX_REMEMBERED or size > MAX_REMEMBERED_BYTES:
        oldest = next(iter(known))
        gone = known.pop(oldest)
        size -= len(oldest) + len(gone.etag) + len(gone.body)


async def _fetch(
    client: AsyncHTTPClient, request: HTTPRequest, before: TaggedAnswer | None
) -> TaggedAnswer:
    fetched = asyncio.ensure_future(client.fetch(request))
    fetched.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        # Not cancelled with us: tornado logs what becomes of it as an error.
        response = await asyncio.shield(fetched)
    except HTTPError as error:
        if error.code == 304 and before is not None:
            return before
        raise
    return TaggedAnswer(response.headers.get("Etag", ""), bytes(response.body or b""))


def timestamp(moment: datetime) -> float:
    """Seconds since the epoch; a time without a zone is UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()

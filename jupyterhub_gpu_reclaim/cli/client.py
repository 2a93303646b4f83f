"""Client of the service's API for people and programs, with a token of the Hub.

It decides nothing and retries nothing: no answer is
``Unreachable(API_UNREACHABLE)``, a refusal is raised in the service's own words. The
spawner's calls are in ``hub/client.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.drain import HERE, DrainOrder, DrainReport
from jupyterhub_gpu_reclaim.common.errors import BadRequest, ReclaimError
from jupyterhub_gpu_reclaim.common.http.client import Answer, Connection
from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    SessionKey,
    SessionView,
)
from jupyterhub_gpu_reclaim.common.node_status import NodeHealth
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from jupyterhub_gpu_reclaim.common.orders import Order

T = TypeVar("T")

#: The service's path below the Hub's address.
SERVICE = "/services/gpu-reclaim"
#: Longest silence of the stream of changes, seconds; it has a heartbeat.
MAX_SILENCE = 60.0


class SessionsClient:
    """The calls about sessions.

    ``url``: of the Hub, or of the service itself (a path with ``/services/`` in it).

    Raises:
        BadRequest: the address is invalid.
    """

    def __init__(
        self, url: str, token: str, *, ca_file: str = "", timeout: float = 30.0
    ) -> None:
        address, self._prefix = _parts(url)
        self._timeout = timeout
        headers = {
            "Authorization": f"token {token}",
            "Content-Type": "application/json",
        }
        self._http = Connection(
            address,
            lambda: headers,
            Reason.API_UNREACHABLE,
            ca_file=ca_file,
            url=address + self._prefix,
        )

    def close(self) -> None:
        self._http.close()

    async def sessions(self) -> list[SessionView]:
        return await self._ask("GET", "sessions", list[SessionView])

    async def session(self, key: SessionKey) -> SessionView:
        return await self._ask("GET", f"sessions/{key.path}", SessionView)

    async def why(self, key: SessionKey) -> list[Decision]:
        """List every reason for and against a suspend, the deciding one first."""
        return await self._ask("GET", f"sessions/{key.path}/why", list[Decision])

    async def order(self, key: SessionKey, order: Order) -> Any:
        """Give an order, or begin with it; the answer is of its type. Idempotent."""
        path = f"sessions/{key.path}/{order.kind}"
        return await self._ask("POST", path, order.answer, order)

    async def nodes(self) -> list[NodeHealth]:
        return await self._ask("GET", "nodes", list[NodeHealth])

    async def drain(self, node: str, order: DrainOrder) -> DrainReport:
        """Begin to suspend whatever runs on a node; empty: the Hub's own machine."""
        return await self._ask("POST", _drain_of(node), DrainReport, order)

    async def drains(self) -> list[DrainReport]:
        return await self._ask("GET", "drains", list[DrainReport])

    async def undrain(self, node: str) -> None:
        await self._call("DELETE", _drain_of(node))

    async def changes(self) -> AsyncGenerator[SessionView, None]:
        """Yield every session as it is, then each change; ends now and then.

        Raises:
            Unreachable: the stream broke; call again.
        """
        name = b""
        path = f"{self._prefix}/api/events"
        async for line in self._http.lines("GET", path, silence=MAX_SILENCE):
            if isinstance(line, Answer):
                raise self._refusal(line)
            field, _, value = line.partition(b": ")
            if field == b"event":
                name = value
            elif field == b"data" and name == b"session":
                yield self._decode(value, SessionView, path)

    async def _ask(
        self, method: str, path: str, kind: type[T], body: object = None
    ) -> T:
        answer = await self._call(method, path, body)
        return self._decode(answer.body, kind, path)

    async def _call(self, method: str, path: str, body: object = None) -> Answer:
        more = {} if body is None else {"body": codec.encode(body)}
        path = f"{self._prefix}/api/{path}"
        answer = await self._http.ask(method, path, limit=self._timeout, **more)
        if answer.status >= 300:
            raise self._refusal(answer)
        return answer

    def _decode(self, data: bytes, kind: type[T], path: str) -> T:
        why = "what it says is not understood; is it of another version"
        return self._http.decode(data, kind, path, why=why)

    def _refusal(self, answer: Answer) -> ReclaimError:
        """Read the service's own error; an answer without one is not the service's."""
        why = "something else is there"
        if answer.status < 400:
            why = "it sends us elsewhere; give the address where that ends, with https"
        elif answer.status >= 500:
            why = "what stands before it says that it is away"
        why = f"{why} (status {answer.status})"
        return answer.refusal() or self._http.unanswered("", why=why)


def _drain_of(node: str) -> str:
    return f"nodes/{quote(node, safe='') or HERE}/drain"


def _parts(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.username or parts.password or parts.query or parts.fragment:
        what = (
            f"{url!r} is no address of a Hub, such as https://hub.example.org or"
            " http://127.0.0.1:8000/jupyter."
        )
        raise BadRequest(Reason.INVALID, what=what)
    path = parts.path.rstrip("/")
    if "/services/" not in path:
        path += SERVICE
    return f"{parts.scheme}://{parts.netloc}", path

"""The Hub's REST API, as the control plane's ``Hub``: which servers run, start, stop.

It decides nothing and retries nothing; no answer in time is
``Unreachable(HUB_UNREACHABLE)``. The scopes that each call needs are named beside it;
``docs/reference/scopes.md`` says what each is for.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused
from jupyterhub_gpu_reclaim.common.http.client import Answer, Connection
from jupyterhub_gpu_reclaim.common.models import HubState, SessionKey, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.errors import Unreachable

#: Users per page; the Hub's own bound is 200.
PAGE = 200
#: The Hub answers pages to those who ask for them by this type.
_PAGINATION = "application/jupyterhub-pagination+json"


class _Server(Value, frozen=True, kw_only=True):
    ready: bool = False
    pending: str | None = None
    stopped: bool = False
    user_options: Any = None  #: user options of the start, of any type


class _User(Value, frozen=True, kw_only=True):
    name: str = ""
    groups: list[str] | None = None  #: likewise (``read:users:groups``)
    created: datetime | None = None  #: likewise (``read:users``)
    #: Running servers by name; left out by a Hub that does not let us see them.
    servers: dict[str, _Server] | None = None


class _UsersPage(
    Value, frozen=True, kw_only=True, rename={"pagination": "_pagination"}
):
    items: list[_User]
    pagination: dict[str, Any]


class _Message(Value, frozen=True, kw_only=True):
    message: str = ""


class HubClient:
    """The Hub that has started us."""

    def __init__(
        self,
        api_url: str,
        token: str,
        *,
        ca_file: str = "",
        own: tuple[str, str] | None = None,
        quick: float = 15.0,
        slow: float = 60.0,
    ) -> None:
        headers = {"Authorization": f"token {token}"}
        self._http = Connection(
            api_url, lambda: headers, Reason.HUB_UNREACHABLE, ca_file=ca_file, own=own
        )
        self._quick = quick
        self._slow = slow
        self._users: dict[str, _User] = {}  # of the last answers

    def close(self) -> None:
        """Close connections; calls in flight fail."""
        self._http.close()

    async def servers(self) -> dict[SessionKey, HubState]:
        """Every server that is not stopped (``list:users``, ``servers``)."""
        found: dict[SessionKey, HubState] = {}
        users: dict[str, _User] = {}
        for user in await self._active_users():
            users[user.name] = user
            for name, server in self._servers(user, "/users").items():
                found[SessionKey(user.name, name)] = _state(server)
        self._users = users
        return {key: it for key, it in found.items() if it is not HubState.STOPPED}

    async def _active_users(self) -> list[_User]:
        found: list[_User] = []
        offset: int | None = 0
        while offset is not None:
            path = f"/users?state=active&offset={offset}&limit={PAGE}"
            answer = await self._get(path, accept=_PAGINATION)
            page = self._http.decode(answer.body, _UsersPage, path)
            found += page.items
            following = page.pagination.get("next")
            offset = following and following["offset"]
        return found

    async def server(self, key: SessionKey) -> HubState:
        """The state of a server (``servers``)."""
        user = await self._user(key.user)
        if user is None:
            return HubState.STOPPED
        self._users[key.user] = user
        server = self._servers(user, f"/users/{key.user}").get(key.server)
        return HubState.STOPPED if server is None else _state(server)

    async def _user(self, name: str) -> _User | None:
        path = f"/users/{_quoted(name)}"
        answer = await self._get(path, missing_ok=True)
        if answer.status == 404:
            return None
        return self._http.decode(answer.body, _User, path)

    def groups(self, user: str) -> list[str] | None:
        """The user's groups (``read:users:groups``) as last told; None: not known."""
        known = self._users.get(user)
        return None if known is None else known.groups

    def options(self, key: SessionKey) -> dict[str, list[str]] | None:
        """The options that a server was started with, as texts; None: not known."""
        known = self._users.get(key.user)
        server = (known.servers or {}).get(key.server) if known is not None else None
        return None if server is None else _texts(server.user_options)

    async def created(self, user: str) -> float:
        """The Unix time at which the Hub made that user (``read:users``), in seconds.

        Infinity if there is no such user, or the Hub does not let us see it: a name may
        have been another person's before.

        Raises:
            Unreachable: no answer, or not one for us.
        """
        found = await self._user(user)
        made = None if found is None else found.created
        if made is None:
            return math.inf
        return made.replace(tzinfo=made.tzinfo or UTC).timestamp()

    async def stop(self, key: SessionKey) -> None:
        """Ask for a stop (``servers``); the answer may come before its end."""
        answer = await self._order("DELETE", key)
        if answer.status not in {202, 204, 404}:
            raise _refused(answer, f"stop {key}")

    async def start(self, key: SessionKey) -> None:
        """Ask for a start (``servers``), with the options of the last one.

        The body is empty on purpose: options in it would replace those of the user.
        The answer may come before the server is ready.
        """
        answer = await self._order("POST", key)
        if answer.status in {201, 202}:
            return
        if answer.status == 400 and "already running" in _message(answer):
            return
        raise _refused(answer, f"start {key}")

    async def _order(self, method: str, key: SessionKey) -> Answer:
        path = f"/users/{_quoted(key.user)}/server"
        if key.server:
            path += f"s/{_quoted(key.server)}"
        return await self._ask(method, path, limit=self._slow)

    async def _get(
        self, path: str, *, accept: str = "application/json", missing_ok: bool = False
    ) -> Answer:
        headers = {"Accept": accept}
        answer = await self._ask("GET", path, limit=self._quick, headers=headers)
        if answer.status == 200 or (missing_ok and answer.status == 404):
            return answer
        raise self._unanswered(answer, path)

    async def _ask(self, method: str, path: str, **more: Any) -> Answer:
        answer = await self._http.ask(method, path, **more)
        if answer.status >= 502:
            raise self._unanswered(answer, path)
        return answer

    def _unanswered(self, answer: Answer, path: str) -> Unreachable:
        detail = f"{path}: status {answer.status} {_message(answer)}"
        return self._http.unanswered(detail)

    def _servers(self, user: _User, path: str) -> dict[str, _Server]:
        """The servers of a user; a Hub that hides them has not said there are none."""
        if user.servers is None:
            detail = f"{path}: no servers: is the scope `servers` missing?"
            raise self._http.unanswered(detail)
        return user.servers


def _quoted(name: str) -> str:
    return quote(name, safe="@~")


def _texts(options: Any) -> dict[str, list[str]]:
    """Options as texts: forms give lists, KubeSpawner and scripts give anything.

    Anything but texts, numbers and booleans is left out.
    """
    found = {}
    for name, value in options.items() if isinstance(options, dict) else ():
        many = value if isinstance(value, list) else [value]
        texts = [str(x).lower() if isinstance(x, bool) else x for x in many]
        found[str(name)] = [str(x) for x in texts if isinstance(x, str | int | float)]
    return found


def _state(server: _Server) -> HubState:
    if server.pending == "spawn":
        return HubState.SPAWNING
    if server.pending == "stop":
        return HubState.STOPPING
    if server.pending:
        return HubState.UNSETTLED
    return HubState.RUNNING if server.ready else HubState.STOPPED


def _message(answer: Answer) -> str:
    try:
        return codec.decode(answer.body, _Message).message
    except BadRequest:
        return ""


def _refused(answer: Answer, what: str) -> Refused:
    message = _message(answer)
    detail = f"{what}: status {answer.status} {message}"
    pending = answer.status == 400 and ("pending" in message or "renamed" in message)
    if pending or answer.status in {429, 500, 503}:
        return Refused(
            Reason.OPERATION_IN_FLIGHT,
            operation="start or stop",
            detail=detail,
            retryable=True,
        )
    why = message.removesuffix(".") or answer.status
    return Refused(Reason.HUB_REFUSED, why=why, detail=detail, retryable=False)

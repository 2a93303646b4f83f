"""Wraps methods of JupyterHub itself, once, as ``configure`` is called.

``JupyterHub.start_service``: if a managed service exits or does not answer in time, the
Hub calls ``exit(1)`` (trap T21). Ours is started without waiting, watched, restarted.
The delete of the API's server handler: a spawner is not told who asks for a stop (T28),
but a stop that our service requested must never end what is not saved: :data:`ASKER`.
``User.spawn``: a return that fails must not count as a failure of the Hub, which may
end itself after some (T16). Hooks, profiles and logins fail outside of a spawner.

``spawner/kept.py`` has two more. Nothing else of JupyterHub is ever changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from jupyterhub.apihandlers.users import UserServerAPIHandler
from jupyterhub.app import JupyterHub
from jupyterhub.user import User

from jupyterhub_gpu_reclaim.common.auth.principals import Principal, of_service, of_user
from jupyterhub_gpu_reclaim.common.auth.scopes import SERVICE_NAME
from jupyterhub_gpu_reclaim.hub import cullers, self_check
from jupyterhub_gpu_reclaim.service.process import held_socket

if TYPE_CHECKING:
    from collections.abc import Callable

_MARK = "_gpu_reclaim_wrapped"
#: Seconds between two looks whether the service runs; JupyterHub's own 30 are long for
#: those who wait for it.
_LOOK = 1.0
#: Seconds that the service of a Hub that has just ended has to leave its address.
_PREDECESSOR = 5.0


class Asker(NamedTuple):
    """The caller who asks the Hub's API for a stop or a deletion."""

    who: Principal
    #: Whether a program asks, by a service's or somebody's token, and not a person who
    #: has just pressed a button.
    program: bool = False
    culler: bool = False
    deletes_user: bool = False

    @property
    def ours(self) -> bool:
        return self.who == OURS.who


#: Our service.
OURS = Asker(of_service(SERVICE_NAME), program=True)
#: Caller who asked for the stop or deletion under way; None: not the API. The
#: Hub's task that does it has it from the request's.
ASKER: ContextVar[Asker | None] = ContextVar("ASKER", default=None)


def apply(
    hub: type[Any] = JupyterHub,
    servers: type[Any] = UserServerAPIHandler,
    users: type[Any] = User,
) -> bool:
    """Wrap the methods; returns whether all are in place afterwards.

    A method that is not as we know it (missing, other arguments) is left alone, with a
    warning that says what is not repaired then.
    """
    spared = wrap(
        hub,
        "start_service",
        ["self", "service_name", "service", "ssl_context"],
        _sparing_the_hub,
        "starts services in a way we do not know; where ours does not come up, it ends",
    )
    noted = wrap(
        servers,
        "delete",
        ["self", "user_name", "server_name"],
        _noting_who_asks,
        "stops servers in a way we do not know; a session that goes on while our"
        " service has it stopped, and is away, is ended unsaved",
    )
    refused = wrap(
        users,
        "spawn",
        ["self", "server_name", ...],
        _refusing_returns,
        "starts servers in a way we do not know; returns that a hook or a time limit"
        " ends count towards its consecutive_failure_limit",
    )
    return spared and noted and refused


def wrap(
    owner: type[Any],
    name: str,
    parameters: list[Any],
    wrapper: Callable[[Any], Any],
    otherwise: str,
) -> bool:
    """Wrap a method that has these parameters; returns whether that is in place.

    ``...`` at their end stands for any others.
    Else it warns that this JupyterHub does ``otherwise``.
    """
    original: Any = getattr(owner, name, None)
    if getattr(original, _MARK, False):
        return True
    found: list[Any] = list(inspect.signature(original).parameters) if original else []
    if parameters[-1] is ...:  # and any others
        found[len(parameters) - 1 :] = [...]
    if found != parameters:
        log = logging.getLogger("JupyterHub")
        log.warning("gpu-reclaim: this JupyterHub %s", otherwise)
        return False
    wrapped = functools.wraps(original)(wrapper(original))
    setattr(wrapped, _MARK, True)
    setattr(owner, name, wrapped)
    return True


def _refusing_returns(original: Callable[..., Any]) -> Callable[..., Any]:
    async def spawn(self: Any, server_name: str = "", *more: Any, **named: Any) -> Any:
        since = time.monotonic()
        try:
            return await original(self, server_name, *more, **named)
        except Exception as error:
            # It stays there while its failure can be looked at.
            spawner, took = self.spawners.get(server_name), time.monotonic() - since
            refusal = getattr(spawner, "reclaim_refusal", None)
            if refusal is None or (translated := refusal(error, took)) is error:
                raise
            raise translated from error

    return spawn


def _noting_who_asks(original: Callable[..., Any]) -> Callable[..., Any]:
    async def delete(self: Any, user_name: str, server_name: str = "") -> Any:
        asks = asker(self)
        ours = asks is not None and asks.ours
        token = ASKER.set(asks)
        try:
            if ours:
                await _ask_spawner(self.find_user(user_name), server_name)
            return await original(self, user_name, server_name)
        finally:
            ASKER.reset(token)

    return delete


async def _ask_spawner(user: Any, server_name: str) -> None:
    """Let the spawner of a server check first whether our service's stop is for it.

    Before the stop: after a failed one the Hub forgets what runs, and it gives up any
    start that is pending.

    Raises:
        HTTPError: there is nothing for our service to stop.
    """
    known = user is not None and server_name in user.orm_spawners
    ask = getattr(user.spawners[server_name], "reclaim_asked", None) if known else None
    if ask is not None:
        await ask()


def asker(handler: Any) -> Asker | None:
    """The caller of one of the Hub's API handlers; None if unknown."""
    asks, hub = handler.current_user, handler.authenticator.parent
    if asks is None:
        return None
    if getattr(asks, "kind", "") != "service":
        token = bool(getattr(handler, "_token_authenticated", False))
        return Asker(of_user(asks.name), program=token)
    services = hub.services if hub is not None else ()
    specs = [spec for spec in services if spec.get("name") == asks.name]
    culler = any(map(cullers.is_culler, specs or [{"name": asks.name}]))
    return Asker(of_service(asks.name), program=True, culler=culler)


def _sparing_the_hub(original: Callable[..., Any]) -> Callable[..., Any]:
    async def start_service(
        self: Any, service_name: str, service: Any, ssl_context: Any = None
    ) -> Any:
        if service_name != SERVICE_NAME or not service.managed:
            return await original(self, service_name, service, ssl_context)
        service.environment = {**service.environment}
        try:
            self_check.look(self, service.environment)
        except Exception:  # anybody's configuration, and files of the machine
            self.log.warning("gpu-reclaim: the self-check failed", exc_info=True)
        # Also while the service itself is away: service/process/held_socket.py.
        with contextlib.suppress(ValueError):
            url = urlsplit(service.url)
            if url.hostname and url.port:
                held = await held_socket.hold(url.hostname, url.port, _PREDECESSOR)
                service.environment[held_socket.HELD] = held
        service.start = functools.partial(_start, service, service.start)
        # Kept, since asyncio does not keep an unawaited task.
        service.gpu_reclaim_starting = asyncio.ensure_future(service.start())
        return True

    return start_service


async def _start(service: Any, start: Callable[[], Any]) -> None:
    """Start it, and look after it; JupyterHub calls this again when it has ended."""
    while True:
        try:
            await start()
            break
        except Exception:  # no memory for a process, say
            service.log.critical("gpu-reclaim: cannot start the service", exc_info=True)
            await asyncio.sleep(_LOOK)
    service.spawner.poll_interval = _LOOK
    service.spawner.start_polling()

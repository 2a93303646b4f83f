"""A session's Jupyter server: its address, its login, and whether it speaks TLS.

Address and Hub login come from the environment of the session's first program. A
checkpoint carries the login as its identity; neither is logged or written to disk here.

The agent talks to a server in plain HTTP; under ``JupyterHub.internal_ssl`` a server
refuses clients without a certificate of the Hub, which a node does not have. A session
that could not be brought back must not be suspended, so this is checked first.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import Identity, Value
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.sampling import jupyter_api

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tornado.httpclient import AsyncHTTPClient

    from jupyterhub_gpu_reclaim.node.session import Session

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Characters that may stand in a request line or a header: visible ASCII.
_WORD = re.compile(r"[!-~]*")


def read_login(pid: int) -> Identity:
    """The login of that host pid's session; OSError: it ended, or keeps us waiting."""
    words = procfs.words(pid, "environ")
    ours = (word for word in words if word.startswith(b"JUPYTERHUB_"))
    pairs = (word.decode("utf-8", "replace").partition("=") for word in ours)
    environment = {name: value for name, _, value in pairs}
    port, _ = _port_and_path(environment.get("JUPYTERHUB_SERVICE_URL", ""))
    token = environment.get("JUPYTERHUB_API_TOKEN", "")
    if not (_WORD.fullmatch(_prefix(environment)) and _WORD.fullmatch(token)):
        port = 0  # a request must not carry what is not valid HTTP
    status = procfs.fields(procfs.read(pid, "status").decode(errors="replace"))
    uid = int(status["Uid"].split()[0])
    return Identity(api_token=token, port=port, environment=environment, uid=uid)


def address_of(login: Identity, session: Session) -> jupyter_api.ServerAddress | None:
    """Address of that session's server; None: the login does not say."""
    if not login.port:
        return None
    prefix = _prefix(login.environment)
    return jupyter_api.ServerAddress(
        login.port, prefix, login.api_token, session.init_pid, session.init_start
    )


def find_address(session: Session, server_pid: int) -> jupyter_api.ServerAddress | None:
    """Address of a session's server; None: its environment does not say."""
    try:
        login = read_login(server_pid)
    except OSError:
        return None
    return address_of(login, session)


def _prefix(environment: Mapping[str, str]) -> str:
    """With a slash at both ends."""
    _, path = _port_and_path(environment.get("JUPYTERHUB_SERVICE_URL", ""))
    prefix = environment.get("JUPYTERHUB_SERVICE_PREFIX") or path
    return f"/{prefix.strip('/')}/".replace("//", "/")


def _port_and_path(url: str) -> tuple[int, str]:
    """Port (0 for none) and path of a URL; the user may have put anything there."""
    try:
        address = urlsplit(url)
        port = address.port or 0
    except ValueError:
        return 0, ""
    return port, address.path


#: A server that is slow is not waited for.
_ASK_SECONDS = 2.0


class ServerState(Value, frozen=True, kw_only=True):
    """Kernels and terminals that a server had open: not to be culled after a resume."""

    kernels: list[str]
    terminals: list[str]


async def ask_state(
    client: AsyncHTTPClient, login: Identity, session: Session
) -> ServerState:
    """The kernels and terminals of a session's server; anything unknown is left out."""
    address = address_of(login, session)
    if address is None:
        return ServerState(kernels=[], terminals=[])
    kernels = await _list(client, address, "api/kernels", jupyter_api.KERNELS)
    terminals = await _list(client, address, "api/terminals", jupyter_api.TERMINALS)
    return ServerState(
        kernels=[kernel.id for kernel in kernels],
        terminals=[terminal.name for terminal in terminals],
    )


async def _list(
    client: AsyncHTTPClient,
    address: jupyter_api.ServerAddress,
    path: str,
    kind: type[list[T]],
) -> list[T]:
    try:
        return await jupyter_api.ask(client, address, path, kind, seconds=_ASK_SECONDS)
    except ReclaimError as error:
        _log.info("- the server does not list what it runs: %s", error.detail)
        return []


async def busy_kernels(
    client: AsyncHTTPClient, session: Session, server_pid: int
) -> frozenset[str]:
    """The kernels that a session's server calls busy; anything unknown is left out."""
    address = await asyncio.to_thread(find_address, session, server_pid)
    if address is None:
        return frozenset()
    kernels = await _list(client, address, "api/kernels", jupyter_api.KERNELS)
    return frozenset(one.id for one in kernels if one.execution_state == "busy")

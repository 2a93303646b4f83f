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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from jupyterhub_gpu_reclaim.common.auth import tab_tokens
from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.common.models import Identity, Value
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.sampling import jupyter_api

if TYPE_CHECKING:
    from tornado.httpclient import AsyncHTTPClient

    from jupyterhub_gpu_reclaim.node.session import Session

_log = logging.getLogger(__name__)

T = TypeVar("T")

_WANTED = (b"JUPYTERHUB_", f"{tab_tokens.VARIABLE}=".encode())
#: Characters that may stand in a request line or a header: visible ASCII.
_WORD = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True)
class ServerLogin:
    """Address, token and user of a session's own server."""

    port: int  #: 0 if the environment does not say
    prefix: str  #: with a slash at both ends
    token: str = field(repr=False)  #: empty if there is none
    uid: int
    cwd: str
    #: the ``JUPYTERHUB_…`` variables, and the key for its tabs
    environment: dict[str, str] = field(repr=False)

    @property
    def identity(self) -> Identity:
        return Identity(
            api_token=self.token,
            port=self.port,
            environment=self.environment,
            uid=self.uid,
            cwd=self.cwd,
        )


def read_login(pid: int) -> ServerLogin:
    """The login of that host pid's session; OSError: it ended, or keeps us waiting."""
    process = Path(f"/proc/{pid}")
    environment = _environment(procfs.words(pid, "environ"))
    port, path = _port_and_path(environment.get("JUPYTERHUB_SERVICE_URL", ""))
    prefix = environment.get("JUPYTERHUB_SERVICE_PREFIX") or path or "/"
    token = environment.get("JUPYTERHUB_API_TOKEN", "")
    if not (_WORD.fullmatch(prefix) and _WORD.fullmatch(token)):
        port, prefix = 0, "/"  # a request must not carry what is not valid HTTP
    uid = next(
        int(line.split()[1])
        for line in (process / "status").read_text().splitlines()
        if line.startswith("Uid:")
    )
    return ServerLogin(
        port=port,
        prefix="/" + prefix.strip("/") + "/" if prefix.strip("/") else "/",
        token=token,
        uid=uid,
        cwd=str((process / "cwd").readlink()),
        environment=environment,
    )


def _port_and_path(url: str) -> tuple[int, str]:
    """Port (0 for none) and path of a URL; the user may have put anything there."""
    try:
        address = urlsplit(url)
        port = address.port or 0
    except ValueError:
        return 0, ""
    return port, address.path


def _environment(words: list[bytes]) -> dict[str, str]:
    pairs = (
        word.decode("utf-8", "replace").partition("=")
        for word in words
        if word.startswith(_WANTED)
    )
    return {name: value for name, _, value in pairs}


#: A server that is slow is not waited for.
_ASK_SECONDS = 2.0


class ServerState(Value, frozen=True, kw_only=True):
    """Kernels and terminals that a server had open: not to be culled after a resume."""

    kernels: list[str]
    terminals: list[str]


def address_of(session: Session, login: ServerLogin) -> jupyter_api.ServerAddress:
    return jupyter_api.ServerAddress(
        login.port, login.prefix, login.token, session.init_pid, session.init_start
    )


async def ask_state(
    client: AsyncHTTPClient, session: Session, login: ServerLogin
) -> ServerState:
    """The kernels and terminals of a session's server; anything unknown is left out."""
    if not login.port:
        return ServerState(kernels=[], terminals=[])
    address = address_of(session, login)

    async def ask(path: str, kind: type[list[T]]) -> list[T]:
        try:
            return await jupyter_api.ask(
                client, address, path, kind, seconds=_ASK_SECONDS
            )
        except ReclaimError as error:
            _log.info("- the server does not list what it runs: %s", error.detail)
            return []

    kernels = await ask("api/kernels", jupyter_api.KERNELS)
    terminals = await ask("api/terminals", jupyter_api.TERMINALS)
    return ServerState(
        kernels=[kernel.id for kernel in kernels],
        terminals=[terminal.name for terminal in terminals],
    )


async def busy_kernels(
    client: AsyncHTTPClient, session: Session, server_pid: int
) -> frozenset[str]:
    """The kernels that a session's server calls busy; anything unknown is left out."""
    try:
        login = await asyncio.to_thread(read_login, server_pid)
        if not login.port:
            return frozenset()
        kernels = await jupyter_api.ask(
            client,
            address_of(session, login),
            "api/kernels",
            jupyter_api.KERNELS,
            seconds=_ASK_SECONDS,
        )
    except (ReclaimError, OSError):
        return frozenset()
    return frozenset(one.id for one in kernels if one.execution_state == "busy")


async def speaks_tls(
    client: AsyncHTTPClient, address: jupyter_api.ServerAddress, login: ServerLogin
) -> bool:
    """Whether it speaks TLS; not if it answers in plain HTTP, whatever its URL."""
    url = login.environment.get("JUPYTERHUB_SERVICE_URL", "")
    if not address.port or not url.startswith("https:"):
        return False
    try:
        await jupyter_api.ask(
            client, address, "api", jupyter_api.Version, seconds=_ASK_SECONDS
        )
    except ReclaimError as error:
        return not isinstance(error, NotFound)
    return False

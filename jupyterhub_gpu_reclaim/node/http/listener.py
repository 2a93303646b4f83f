"""Sets up the agent's listener (socket file or TCP, token, TLS), or says why not."""

from __future__ import annotations

import os
import secrets
import ssl
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tornado.netutil import bind_sockets

from jupyterhub_gpu_reclaim.common.durable import write_durably
from jupyterhub_gpu_reclaim.common.http import unix_sockets
from jupyterhub_gpu_reclaim.common.http.server import Door, raise_file_limit
from jupyterhub_gpu_reclaim.node.http import routes

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.node.local_node import LocalNode
    from jupyterhub_gpu_reclaim.node.setup.settings import AgentSettings

_UNIX = "unix:"


class CannotStartError(Exception):
    """The agent cannot start; the message is the sentence to print."""


def listen(settings: AgentSettings, node: LocalNode) -> Door:
    """A server that answers for that node; it accepts calls from now on.

    Raises:
        CannotStartError: the address, the token or the certificate is off.
    """
    token = read_token(Path(settings.token_file))
    server = Door(
        routes.make_application(node, token),
        tls=_tls(settings),
        max_body=routes.MAX_BODY_BYTES,
        files=raise_file_limit(),
    )
    where = settings.listen
    try:
        if where.startswith(_UNIX):
            path = Path(where.removeprefix(_UNIX))
            folder(path.parent)
            server.add_socket(unix_sockets.listening(path))
        else:
            host, port = _address(where)
            if not settings.certificate:
                raise CannotStartError(
                    f"listening on {host} needs TLS: set certificate and private_key,"
                    " or listen on a unix: socket"
                )
            server.add_sockets(bind_sockets(port, host))
    except (OSError, ValueError) as error:
        raise CannotStartError(f"cannot listen on {where}: {error}") from None
    return server


def remove_socket(settings: AgentSettings) -> None:
    """Remove the socket's file once its listener is closed."""
    if settings.listen.startswith(_UNIX):
        Path(settings.listen.removeprefix(_UNIX)).unlink(missing_ok=True)


def _tls(settings: AgentSettings) -> ssl.SSLContext | None:
    if not settings.certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.private_key or None)
    except OSError as error:  # ssl.SSLError is one
        raise CannotStartError(f"certificate or private_key: {error}") from None
    return context


def read_token(path: Path) -> str:
    """The token, made at the first start.

    Raises:
        CannotStartError: the file is not ours alone, is empty or cannot be read.
    """
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(path, secrets.token_urlsafe(32).encode() + b"\n")
        status = path.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o007:
            raise CannotStartError(f"{path} must belong to root, closed to others")
        token = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise CannotStartError(f"token_file {path}: {error}") from None
    if len(token) < 16:
        raise CannotStartError(f"{path} holds fewer than 16 characters")
    return token


def folder(path: Path) -> Path:
    """Make a folder with mode 0700 where it is missing, and return it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotStartError(f"{path}: {error.strerror}") from None
    return path


def own_folder(path: Path) -> Path:
    """As :func:`folder`, closed to others; CannotStartError: it is another user's."""
    status = folder(path).stat()
    if status.st_uid != os.geteuid():
        raise CannotStartError(f"{path} belongs to user id {status.st_uid}")
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def _address(text: str) -> tuple[str, int]:
    """``address:port`` taken apart; ValueError when it is none."""
    parsed = urlsplit(f"//{text}")
    if not parsed.hostname or parsed.port is None:
        raise ValueError("expected unix:PATH or ADDRESS:PORT")
    return parsed.hostname, parsed.port

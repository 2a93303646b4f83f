"""Detects whether a session's server speaks TLS, which the agent does not.

It is checked before anything of the session is touched. The agent asks a restored
server whether it answers, keeps its cullers from ending what just came back, and
samples its use, all in plain HTTP; under ``JupyterHub.internal_ssl`` a server refuses
clients without a certificate of the Hub, which a node does not have. A session that
could not be brought back must not be saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.linux import netns
from jupyterhub_gpu_reclaim.sampling import jupyter_api

if TYPE_CHECKING:
    from tornado.httpclient import AsyncHTTPClient

    from jupyterhub_gpu_reclaim.node.sessions.login import Login

#: A server that is slow is not waited for: then its environment decides.
_SECONDS = 2.0
#: Kinds of a TLS record that a server's first one can have (RFC 8446, 5.1).
_ALERT, _HANDSHAKE = 21, 22


async def speaks(
    client: AsyncHTTPClient, address: jupyter_api.Address, login: Login
) -> bool:
    """Whether it does; one that answers in plain HTTP does not, whatever it says."""
    if not address.port:
        return False
    try:
        await jupyter_api.ask(
            client, address, "api", jupyter_api.Version, seconds=_SECONDS
        )
    except NotFound:
        return False
    except ReclaimError:
        if await asyncio.to_thread(answers, address):
            return True
        url = login.environment.get("JUPYTERHUB_SERVICE_URL", "")
        with contextlib.suppress(ValueError):
            return urlsplit(url).scheme == "https"
    return False


def answers(address: jupyter_api.Address) -> bool:
    """Whether a TLS greeting is answered by one; blocks for seconds."""
    with contextlib.suppress(OSError):
        made = netns.make_socket(
            address.pid or os.getpid(),
            socket.AF_INET,
            socket.SOCK_STREAM,
            start=address.start or None,
        )
        with made:
            made.settimeout(_SECONDS)
            made.connect((jupyter_api.LOOPBACK, address.port))
            made.sendall(_client_hello())
            said = made.recv(2)
            return len(said) == 2 and said[0] in {_ALERT, _HANDSHAKE} and said[1] == 3
    return False


def _client_hello() -> bytes:
    """A TLS client's greeting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(heard, said).do_handshake()
    return said.read()

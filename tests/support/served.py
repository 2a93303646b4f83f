"""A Tornado application that a test serves, at an address of its own."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

from jupyterhub_gpu_reclaim.common.http import unix_sockets
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.linux.processes import start_time
from jupyterhub_gpu_reclaim.sampling.jupyter_api import ServerAddress
from jupyterhub_gpu_reclaim.sampling.process_tree import SampleTarget


@asynccontextmanager
async def served(application: Application, **options: Any) -> AsyncGenerator[int]:
    """The port where it is served."""
    server = HTTPServer(application, **options)
    (socket,) = bind_sockets(0, "127.0.0.1")
    server.add_socket(socket)
    try:
        yield socket.getsockname()[1]
    finally:
        server.stop()
        await server.close_all_connections()


@asynccontextmanager
async def served_at(path: Path, application: Application) -> AsyncGenerator[str]:
    """The address of the UNIX socket where it is served."""
    server = HTTPServer(application)
    server.add_socket(unix_sockets.listening(path))
    try:
        yield f"unix:{path}"
    finally:
        server.stop()
        await server.close_all_connections()


def here(port: int, prefix: str = "/", token: str = "secret") -> ServerAddress:
    """The address of a server in the network of this process."""
    me = os.getpid()
    return ServerAddress(port, prefix, token, me, start_time(me))


def sampled_here(port: int, name: str = "ann") -> SampleTarget:
    """A session of this process, whose server is there."""
    me = os.getpid()
    return SampleTarget(name, SessionKey(name), me, me, [me], here(port))

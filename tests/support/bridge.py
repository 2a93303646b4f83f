"""A server extension that passes bodies on to programs, as jupyter-server-proxy does.

``POST bridge/<port>``: the server connects to the program once, and sends it the body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado.tcpclient import TCPClient
from tornado.web import authenticated

if TYPE_CHECKING:
    from tornado.iostream import IOStream

NAME = "tests.support.bridge"


class BridgeHandler(APIHandler):
    _open: ClassVar[dict[str, IOStream]] = {}

    @authenticated
    async def post(self, port: str) -> None:
        if port not in self._open:
            self._open[port] = await TCPClient().connect("127.0.0.1", int(port))
        await self._open[port].write(self.request.body)
        self.set_status(204)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    path = url_path_join(server.web_app.settings["base_url"], r"bridge/(\d+)")
    server.web_app.add_handlers(".*$", [(path, BridgeHandler)])

"""Counts the data of pages for their programs behind the server (jupyter-server-proxy).

Users of VS Code, Streamlit or a dashboard there may use no kernel and no terminal of
the server's. From outside, only connections that last are seen, and no UNIX sockets: a
page that sends a request for each click (Dash, Gradio, TensorBoard) is not. So it is
counted here, and told with the server's status: the path and the body of each request,
and each message of a websocket, but no headers, nor what keeps a connection alive.
"""

from __future__ import annotations

from typing import Any, Final

try:
    from jupyter_server_proxy.handlers import ProxyHandler
except ImportError:
    ProxyHandler = None

#: Field of the server's status: bytes so far.
FIELD: Final = "gpu_reclaim_paged"


def install(facts: dict[str, Any]) -> None:
    if ProxyHandler is None:
        return
    prepare, on_message = ProxyHandler.prepare, ProxyHandler.on_message
    facts[FIELD] = 0

    async def counted_request(self: Any, *args: Any, **kwargs: Any) -> None:
        prepared = prepare(self, *args, **kwargs)
        if prepared is not None:
            await prepared
        if self.current_user:  # others are refused
            facts[FIELD] += len(self.request.uri) + len(self.request.body)

    def counted_message(self: Any, message: str | bytes) -> Any:
        facts[FIELD] += len(message)
        return on_message(self, message)

    ProxyHandler.prepare, ProxyHandler.on_message = counted_request, counted_message

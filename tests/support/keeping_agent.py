"""A double of the agent over plain HTTP: it keeps checkpoints and does nothing else.

Its fault: it has no sessions, and what it keeps stays until it is deleted.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.auth.handshake import NONCE, PROOF, Hello, Vouching

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo

#: What the agent shares with the service.
TOKEN = "token-of-the-agent"


class AgentThatOnlyKeeps(ThreadingHTTPServer):
    """An agent without sessions; ``saved`` has its checkpoints by their ids."""

    daemon_threads = True

    def __init__(self, *checkpoints: CheckpointInfo, token: str = TOKEN) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.saved = {each.id: each for each in checkpoints}
        self.vouching = Vouching(token.encode())
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: AgentThatOnlyKeeps

    def do_GET(self) -> None:
        if self.path == "/v1/hello":
            self._answer(200, codec.encode(Hello(run="r1")))
            return
        keeps = self.path.startswith("/v1/checkpoints")
        saved = list(self.server.saved.values()) if keeps else []
        self._answer(200, codec.encode(saved))

    def do_DELETE(self) -> None:
        self.server.saved.pop(self.path.rpartition("/")[2], None)
        self._answer(204, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        nonce = self.headers.get(NONCE, "")
        self.send_header(PROOF, self.server.vouching.proof(nonce, status, body))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Keep the tests' output clean."""

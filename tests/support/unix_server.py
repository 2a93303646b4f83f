"""A threaded HTTP server at a UNIX socket, and what it answers with: for doubles."""

import contextlib
import os
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_UNIX


class Answers(BaseHTTPRequestHandler):
    """Quiet, and who asks may have gone."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the tests' output clean."""


class UnixServer(ThreadingHTTPServer):
    address_family = AF_UNIX
    daemon_threads = True

    def __init__(self, path: Path, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address = f"unix:{path}"
        self._path = path
        path.unlink(missing_ok=True)
        super().__init__(str(path), handler)  # type: ignore[arg-type]
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def server_bind(self) -> None:
        """Bind by the folder: its path may be longer than an address."""
        folder = os.open(self._path.parent, os.O_PATH)
        self.server_address = f"/proc/self/fd/{folder}/{self._path.name}"
        socketserver.TCPServer.server_bind(self)
        os.close(folder)

    def close(self) -> None:
        self.shutdown()
        self.server_close()

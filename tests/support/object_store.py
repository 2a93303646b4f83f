"""A real object store's protocol on this machine: moto's S3 server, in a process."""

import contextlib
import http.client
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import boto3

from demo.stack import free_port

LOGIN = {"access_key_id": "AKIAOFATEST", "secret_access_key": "a-very-secret-key"}


class S3:
    def __init__(self, port: int, folder: Path) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.options = {"endpoint": self.endpoint, "region": "us-east-1"}
        self.options_file = folder / "login.json"
        self.options_file.write_text(json.dumps(LOGIN))
        self.options_file.chmod(0o600)
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=LOGIN["access_key_id"],
            aws_secret_access_key=LOGIN["secret_access_key"],
        )

    def bucket(self, name: str) -> str:
        self.client.create_bucket(Bucket=name)
        return f"s3://{name}/some/prefix"

    def unfinished(self, bucket: str) -> list[str]:
        """Names of uploads that were begun and neither finished nor called off."""
        found = self.client.list_multipart_uploads(Bucket=bucket)
        return [upload["Key"] for upload in found.get("Uploads", [])]


def served(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@contextlib.contextmanager
def s3_server(folder: Path):
    port = free_port()
    log = (folder / "moto.log").open("wb")
    with log, _server(port, log) as server:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            assert server.poll() is None, (folder / "moto.log").read_text()
            assert time.monotonic() < deadline, "moto does not start"
            time.sleep(0.05)
        yield S3(port, folder)


@contextlib.contextmanager
def _server(port: int, log):
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=log,
        stderr=log,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    try:
        yield server
    finally:
        server.terminate()
        server.wait(60)


class _Forward(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # who asks has gone; the server would wait for the rest
            self.close_connection = True
            return
        fault = self.server.fault(self.command, self.path)
        if fault.isdigit():
            self._answer(int(fault), [], b"<Error><Code>SlowDown</Code></Error>")
            return
        target = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=30)
        with contextlib.closing(target):
            target.request(self.command, self.path, body, dict(self.headers))
            found = target.getresponse()
            data = found.read()
        if fault == "lost":
            self.close_connection = True
            return
        self._answer(found.status, found.getheaders(), data)

    def __getattr__(self, name: str):
        if name.startswith("do_"):
            return self.handle_any
        raise AttributeError(name)

    def _answer(self, status: int, headers, data: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in {"content-length", "connection", "date", "server"}:
                self.send_header(name, value)
        length = {n.lower(): v for n, v in headers}.get("content-length")
        head = self.command == "HEAD" and length is not None
        self.send_header("Content-Length", length if head else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *args) -> None:
        pass


@contextlib.contextmanager
def faulty(endpoint: str, fault):
    """A way to the server that has faults; the address to use instead.

    Args:
        endpoint: of the server.
        fault: called with the method and the path of each request; returns a
            status to refuse it with, "lost" to do it and lose the answer, or "".
    """
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Forward)
    server.daemon_threads = True
    server.target = int(endpoint.rpartition(":")[2])
    server.fault = fault
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

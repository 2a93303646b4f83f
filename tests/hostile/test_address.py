"""A program on the Hub's machine that waits for the service's port to be free.

Whoever has it gets the requests that the proxy sends there, with people's logins.
"""

import contextlib
import socket
import threading

import pytest
import requests

from tests.hub.test_service_that_fails import came_back
from tests.support import failing_service
from tests.support.failing_service import Stack
from tests.support.hub import wait_until


class Thief(threading.Thread):
    WAYS = (
        ("127.0.0.1", ()),
        ("127.0.0.1", (socket.SO_REUSEADDR,)),
        ("127.0.0.1", (socket.SO_REUSEADDR, socket.SO_REUSEPORT)),
        ("0.0.0.0", (socket.SO_REUSEADDR,)),
    )

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.tries = 0
        self.got: list[str] = []
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.002):
            self.tries += 1
            host, options = self.WAYS[self.tries % len(self.WAYS)]
            with socket.socket() as one, contextlib.suppress(OSError):
                for option in options:
                    one.setsockopt(socket.SOL_SOCKET, option, 1)
                one.bind((host, self.port))
                one.listen()
                self.got.append(host)

    def end(self) -> None:
        self._ended.set()
        self.join(60)


stack = pytest.fixture(failing_service.stack)


def start(stack: Stack) -> None:
    stack.start()
    wait_until(stack.ready, 90, stack.hub.log)


def test_port_is_never_free_while_the_hub_lives(stack):
    """Who comes while nobody is there is not refused, and heard by the next one."""
    start(stack)
    thief = Thief(stack.port)
    thief.start()
    try:
        before = stack.end_service()
        # as the proxy does, which may reuse a connection to who was there before
        url = f"http://127.0.0.1:{stack.port}/services/gpu-reclaim/healthz"
        answer = requests.get(url, timeout=60)
        assert answer.status_code == 200
        assert answer.json()["version"]
        came_back(stack, before)
        assert thief.tries > 100
        assert thief.got == []
    finally:
        thief.end()
    assert stack.lives()

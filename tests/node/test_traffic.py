"""A browser that polls, and a cell that prints, do not stand in a capture's way."""

import contextlib
import json
import threading
import time
import uuid

import pytest
from websockets.exceptions import WebSocketException

from tests.support.agent import wait_for


class Page:
    """A tab that is connected to a kernel, and at once again whenever it is cut off."""

    def __init__(self, server, kernel: str) -> None:
        self.server, self.kernel = server, kernel
        self.session = uuid.uuid4().hex
        self.answered: set[str] = set()
        self.connection = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._stay)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._ended.set()
        if (connection := self.connection) is not None:
            connection.close()
        self._thread.join()

    def _stay(self) -> None:
        while not self._ended.is_set():
            with (
                contextlib.suppress(OSError, WebSocketException),
                self.server.channel(self.kernel, self.session) as self.connection,
            ):
                for text in self.connection:
                    message = json.loads(text)
                    if message["msg_type"] == "execute_reply":
                        self.answered.add(message["parent_header"]["msg_id"])
            self.connection = None
            time.sleep(0.002)

    def run(self, code: str) -> None:
        """Run a cell, and wait for the kernel's answer."""
        connection = wait_for(lambda: self.connection)
        message = self.server.execute(connection, self.session, code)
        wait_for(lambda: message in self.answered, timeout=60)


def cycle(agent, place, places, checkpoint: str):
    agent.suspend(place, checkpoint)
    holding = places("hold")
    agent.come_back(holding, checkpoint)
    return holding


@pytest.mark.long
def test_page_that_connects_again_at_once_runs_its_next_cell(agent, jupyter, places):
    server = jupyter()
    kernel = server.start_kernel()
    place = server.place
    with Page(server, kernel) as page:
        page.run("x = 0")
        for number in range(2):
            place = cycle(agent, place, places, f"cp-{number}")
            page.run("x += 1")
        assert server.run(kernel, "x") == "2"


@pytest.mark.long
def test_output_kept_for_a_disconnected_client_is_still_there(agent, jupyter, places):
    """The server keeps output for the session id of a client that went away."""
    server = jupyter()
    kernel = server.start_kernel()
    session = server.run_and_leave(
        kernel, "import time; time.sleep(2); print('buffered')"
    )
    wait_for(lambda: server.kernels()[0]["execution_state"] == "busy")
    wait_for(lambda: server.kernels()[0]["execution_state"] == "idle")

    cycle(agent, server.place, places, "cp")

    assert "buffered" in server.listen(kernel, session)

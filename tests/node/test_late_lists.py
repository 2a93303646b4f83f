"""A restored server is let through once it has told its kernels and notebooks.

A page that is shown before that starts a kernel in the place of the restored one when a
cell is run.
"""

import threading
import time

import pytest

from jupyterhub_gpu_reclaim.node.workflows import restore
from tests.support.agent import wait_for

#: A server whose list of notebooks comes late, while a file says so.
LATE = """
import asyncio, pathlib
from jupyter_server.services.sessions.sessionmanager import SessionManager
late, asked = pathlib.Path({late!r}), pathlib.Path({asked!r})
class LateSessions(SessionManager):
    async def list_sessions(self):
        if late.exists():
            asked.touch()
        while late.exists():
            await asyncio.sleep(0.02)
        return await super().list_sessions()
"""


@pytest.fixture
def server(agent, jupyter, folder):
    """A server with a kernel, which is saved and has been ended."""
    paths = {name: str(folder / name) for name in ("late", "asked")}
    (folder / "late_sessions.py").write_text(LATE.format(**paths))
    kind = "--ServerApp.session_manager_class=late_sessions.LateSessions"
    server = jupyter(kind)
    kernel = server.start_kernel()
    assert server.run(kernel, "x = 42; x") == "42"
    agent.suspend(server.place, "cp")
    (folder / "late").touch()
    server.kernel = kernel
    return server


class Restoring(threading.Thread):
    def __init__(self, agent, place) -> None:
        super().__init__(daemon=True)
        self.events: list[dict] = []
        self._asked = agent, place
        self.begun = time.monotonic()
        self.seconds = 0.0

    def run(self) -> None:
        agent, place = self._asked
        self.events = agent.restore(place, "cp")
        self.seconds = time.monotonic() - self.begun


def test_restore_is_over_only_when_the_server_has_told_its_notebooks(
    agent, server, places, folder
):
    restoring = Restoring(agent, places("hold"))
    restoring.start()
    wait_for((folder / "asked").exists)
    restoring.join(0.5)  # its answer is the only thing that is missing
    assert restoring.is_alive()
    (folder / "late").unlink()
    restoring.join(60)
    assert restoring.events[-1]["tree"]["state"] == "running"
    assert server.run(server.kernel, "x") == "42"


@pytest.mark.long
def test_restore_of_a_server_that_never_tells_them_is_over_all_the_same(
    agent, server, places, folder
):
    restoring = Restoring(agent, places("hold"))
    restoring.start()
    restoring.join(60)
    assert restoring.events[-1]["tree"]["state"] == "running"
    assert restoring.seconds > restore._LIST_SECONDS
    (folder / "late").unlink()
    assert server.run(server.kernel, "x") == "42"

"""A real agent, real sessions with a real Jupyter server, real CRIU and store."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.support import agent as support
from tests.support.agent import running_agent


@contextlib.contextmanager
def short_folder():
    """A folder with a short path: Unix sockets stand in it."""
    path = Path(tempfile.mkdtemp(prefix="gra-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def shared_agent():
    """One for all tests of a module that do not end it."""
    with short_folder() as folder:
        made = running_agent(folder)
        yield made
        made.kill()
        print(made.log.read_text())


@pytest.fixture
def folder(request):
    """What a test may fill; the module's, where the agent is."""
    if request.node.get_closest_marker("shares_an_agent"):
        yield request.getfixturevalue("shared_agent").folder
        return
    with short_folder() as path:
        yield path


@pytest.fixture
def agent(request, folder):
    """An agent without checkpoints: the test's own, or the module's."""
    shared = request.node.get_closest_marker("shares_an_agent")
    made = request.getfixturevalue("shared_agent") if shared else running_agent(folder)
    yield made
    if made.popen.poll() is None:
        # Their ports stay reserved in the kernel's list for as long as they exist.
        for one in made.get("/v1/checkpoints").json():
            made.delete(f"/v1/checkpoints/{one['id']}")
    if not shared:
        made.kill()
        print(made.log.read_text())


places = pytest.fixture(support.places)
counter = pytest.fixture(support.counter)
jupyter = pytest.fixture(support.jupyter)

"""A real agent beside real containers."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.checkpoint import conftest as engine_tests
from tests.support.agent import Agent, criu_folder
from tests.support.containers import PLACEMENT, PodJupyter
from tests.support.containers import pods as make_pods


@pytest.fixture
def folder():
    """A folder with a short path: Unix sockets stand in it."""
    path = Path(tempfile.mkdtemp(prefix="grc-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


pods = pytest.fixture(make_pods)
criu, engine = engine_tests.criu, engine_tests.engine


@pytest.fixture
def agent(folder, pods):
    del pods  # says why it cannot run here
    made = Agent(folder, criu_folder())
    made.start(PLACEMENT)
    yield made
    made.kill()
    print(made.log.read_text())


@pytest.fixture
def jupyter(folder, pods):
    made = PodJupyter(folder, pods)
    yield made
    made.client.close()

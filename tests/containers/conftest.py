"""A real agent beside real containers."""

import pytest

from tests.checkpoint import conftest as engine_tests
from tests.support.agent import Agent, criu_folder, short_folder
from tests.support.containers import PLACEMENT, PodJupyter
from tests.support.containers import pods as make_pods


@pytest.fixture
def folder():
    with short_folder() as path:
        yield path


pods = pytest.fixture(make_pods)
criu, engine = engine_tests.criu, engine_tests.engine


@pytest.fixture
def agent(folder, pods):
    del pods  # says why it cannot run here
    with Agent(folder, criu_folder()) as made:
        made.start(PLACEMENT)
        yield made


@pytest.fixture
def jupyter(folder, pods):
    made = PodJupyter(folder, pods)
    yield made
    made.client.close()

"""Real sessions for attacks on them."""

import pytest

from tests.checkpoint import conftest as engine_tests

criu, engine, places = (engine_tests.criu, engine_tests.engine, engine_tests.places)
wait_for = pytest.fixture(name="wait_for")(lambda: engine_tests.wait_for)

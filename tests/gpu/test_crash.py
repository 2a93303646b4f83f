"""The agent is killed in the middle: the session computes on."""

import pytest

from tests.gpu.conftest import PATIENCE, Session
from tests.gpu.test_frameworks import TORCH
from tests.support.agent import Agent, Place, criu_folder, wait_for


@pytest.fixture
def fragile(folder, driver):
    """An agent to be killed, of a realm of its own."""
    inside = folder / "crash"
    inside.mkdir(exist_ok=True)
    made = Agent(inside, criu_folder())
    made.start()
    yield made
    made.kill()
    print(made.log.read_text())


@pytest.fixture
def places_of():
    made = []

    def of(folder):
        def make(mode: str, *command: str, env=None) -> Place:
            made.append(Place(folder, mode, *command, env=env))
            return made[-1]

        return make

    yield of
    for place in made:
        place.kill()


@pytest.mark.parametrize("step", ["gpu", "connections", "dump", "files"])
def test_agent_killed_in_a_capture_the_card_is_filled_again(fragile, places_of, step):
    one = Session(fragile, places_of(fragile.folder))
    one(TORCH + "None")
    before = one("float(x.sum())")

    def kill(event) -> bool:
        if (event.get("step") or {}).get("step") == step:
            fragile.kill()
            return True
        return False

    fragile.capture(one.place, f"cp-{step}", until=kill)
    fragile.start()

    wait_for(lambda: fragile.tree(one.place).get("state") == "running", PATIENCE)
    assert one("float(x.sum())") == before
    assert fragile.get("/v1/checkpoints").json() == []

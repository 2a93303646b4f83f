"""The agent is killed in the middle: the session computes on."""

import contextlib
import importlib.util
import threading
import time

import httpx
import pytest

from tests.gpu.conftest import PATIENCE, Session
from tests.gpu.test_frameworks import TORCH
from tests.support.agent import Agent, Place, criu_folder, in_step, wait_for


@pytest.fixture
def fragile(folder, driver):
    """An agent to be killed, of a realm of its own."""
    inside = folder / "crash"
    inside.mkdir(exist_ok=True)
    with Agent(inside, criu_folder()) as made:
        made.start()
        yield made


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

    fragile.capture(one.place, f"cp-{step}", until=in_step(step, fragile.kill))
    fragile.start()

    wait_for(lambda: fragile.tree(one.place).get("state") == "running", PATIENCE)
    assert one("float(x.sum())") == before
    assert fragile.get("/v1/checkpoints").json() == []


#: JAX has a thread that looks at memory which the driver maps.
LARGE = {
    "jax": """
import jax, jax.numpy as jnp
assert jax.default_backend() == "gpu", jax.devices()
x = jax.random.normal(jax.random.key(0), (1 << 31,))
x.block_until_ready()
""",
    "torch": """
import torch
torch.manual_seed(0)
x = torch.randn(1 << 31, device="cuda")
""",
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("work", ["capture", "thaw", "nap", "wake"])
def test_agent_killed_while_memory_moves_the_program_waits_for_the_next(
    fragile, places_of, name, work
):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    one = Session(fragile, places_of(fragile.folder))
    one(LARGE[name] + "None")
    check = "float(x[::1001].sum())"
    before = one(check)
    path = f"/v1/sessions/{one.place.incarnation}"
    if work == "thaw":
        assert one.capture()["checkpoint"]
    if work == "wake":
        one.order("nap")

    def order() -> None:
        with contextlib.suppress(httpx.HTTPError):
            if work == "capture":
                fragile.capture(one.place, "cp-large", until=moves)
            elif work == "thaw":
                moves({"step": {"step": "gpu"}})
                fragile.post(f"{path}/thaw")
            else:
                fragile.events(f"{path}/{work}", {}, moves)

    began = threading.Event()

    def moves(event) -> bool:
        if (event.get("step") or {}).get("step") == "gpu":
            began.set()
        return False

    calling = threading.Thread(target=order)
    calling.start()
    assert began.wait(PATIENCE)
    time.sleep(0.8)
    fragile.kill()
    calling.join()
    time.sleep(3)
    assert one.place.alive
    fragile.start()
    if work == "thaw":
        fragile.post(f"{path}/thaw")
    wait_for(lambda: fragile.tree(one.place).get("state") == "running", PATIENCE)
    assert one(check) == before

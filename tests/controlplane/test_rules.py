"""Rules from what the Hub tells to what a session is warned and suspended by."""

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    KernelSample,
    Sample,
    SessionKey,
)
from jupyterhub_gpu_reclaim.policy.rules import Rules
from jupyterhub_gpu_reclaim.sampling.window import Window
from jupyterhub_gpu_reclaim.service.app import policies_by
from tests.support.simulated import KEY

IDLE = Decision(reclaim=True, code="idle", message="Idle.")


class Told:
    """What Hub and cluster tell of a user and a server."""

    def __init__(self) -> None:
        self.of_user: list[str] | None = None  #: None: we may not see them

    def groups(self, user):
        return self.of_user

    def options(self, key):
        return {"gpu_reclaim": ["off"]}

    def labels(self, key):
        return {}


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def ruled(world, told):
    async def start(*rules, **settings):
        world.change(**settings)
        policies = policies_by(Rules(rules=list(rules)), told, told)
        await world.running("tensors")
        controller = await world.controller(policies=policies)
        await world.reaches(controller, "running")
        return controller

    return start


def _terms(controller):
    terms = controller.users.session(KEY).facts.terms
    return msgspec.to_builtins(terms) if terms else {}


async def test_groups_that_the_hub_tells_decide_and_change(world, ruled, told):
    told.of_user = ["staff"]
    controller = await ruled({"group": "staff", "idle_after": 60, "warn_for": 0})
    await world.until(lambda: _terms(controller).get("idle_after") == 60)
    assert _terms(controller)["warn_for"] == 0
    assert _terms(controller)["by"]["idle_after"] == "group staff"
    told.of_user = []
    await world.until(lambda: _terms(controller) == {})


async def test_groups_that_we_may_not_see_are_not_known(world, ruled):
    controller = await ruled({"group": "staff", "never": True})
    await world.until(lambda: _terms(controller).get("unknown") == "its user's groups")


async def test_options_of_its_start_decide(world, ruled):
    controller = await ruled({"option": "gpu_reclaim=off", "never": True})
    await world.until(lambda: _terms(controller).get("never"))


async def test_warning_is_as_long_as_the_rule_says(world, ruled):
    controller = await ruled({"user": "ada", "warn_for": 900}, warn_for=0.0)
    world.verdict = IDLE
    await world.reaches(controller, "warned")
    left = (
        controller.users.session(KEY).suspends_at - controller.users.session(KEY).since
    )
    assert left == pytest.approx(900, abs=5)
    assert "suspended in 15 min" in controller.users.audit(KEY)[0].message


def test_work_before_the_time_that_a_rule_gives_does_not_count():
    """A busy hour ago says nothing of a session that may rest for ten minutes."""
    window = Window(span=3600, interval=60)
    for minute in range(61):
        work = min(minute, 20) * 60.0  # one core, for the first twenty minutes
        window.add(
            Sample(
                incarnation="i",
                key=SessionKey("ada"),
                at=1e9 + minute * 60.0,
                cpu_work=work,
                kernels=[
                    KernelSample(
                        id="k", name="k", execution_state="idle", last_activity=1e9
                    )
                ],
                terminals=[],
            )
        )
    now = 1e9 + 3600.0
    assert window.usage(now).cpu_percent == pytest.approx(100 / 3)
    assert window.usage(now, 3600.0).cpu_percent == pytest.approx(100 / 3)
    assert window.usage(now, 600.0).cpu_percent == 0.0
    assert window.usage(now, 3000.0).cpu_percent == pytest.approx(100 / 5)

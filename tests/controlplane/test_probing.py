"""An administrator's probe in the service: it spares its session, and no other."""

import asyncio

from jupyterhub_gpu_reclaim.common.models import Decision, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.policy import probe
from tests.support.simulated import KEY

IDLE = Decision(reclaim=True, code="idle", message="Idle for 31 min.")
BOB = SessionKey("bob")


def _decide(view, now):
    """As ``Decider`` where nothing else is against it."""
    said, until = probe.against(view.probed, now)
    if not said:
        return [IDLE]
    message = Reason.PROBE.sentence(said=said)
    return [Decision(reclaim=False, code="probe", message=message, at=until)]


async def test_probe_that_hangs_spares_its_own_session_alone(world):
    asked = []

    async def ask(key):
        asked.append(key)
        if key == KEY:
            await asyncio.sleep(600)
        return f"idle since {world.now() - 3600}"

    await world.running("work")
    await world.running("more", BOB)
    controller = await world.controller(decide=_decide, probe=ask)
    await world.reaches(controller, "suspended", BOB)
    assert world.phase(controller) == "running"
    (verdict,) = controller.users.why(KEY)
    assert "it has not answered yet" in verdict.message
    assert asked.count(KEY) == 1  # one that hangs is not asked again and again
    assert asked.count(BOB) == 2  # once more right before the suspend


async def test_session_that_the_probe_calls_used_at_the_last_moment_stays(world):
    answers = [f"idle since {world.now() - 3600}", f"in use until {world.now() + 600}"]

    async def ask(key):
        return answers[0] if len(answers) == 1 else answers.pop(0)

    await world.running("work")
    controller = await world.controller(decide=_decide, probe=ask)
    await world.until(lambda: len(answers) == 1)
    await world.until(lambda: "in use until" in controller.users.why(KEY)[0].message)
    assert world.phase(controller) == "running"

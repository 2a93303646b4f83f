"""The command line on a terminal: it asks before it takes many, and shows steps."""

import os

from jupyterhub_gpu_reclaim.cli import sessions
from jupyterhub_gpu_reclaim.common.models import Phase, Step
from tests.support.commands import Typed, unused


async def test_terminal_asks_first_and_then_shows_each_step(service, control):
    control.put("ada", usage=unused(3600))
    step = Step(
        step="dump", title="Saving memory", state="going", bytes=1, total_bytes=4
    )
    typed = Typed(service, "suspend", "--idle-for=10m")
    await typed.until("[y/N]")
    assert control.calls == []
    os.write(typed.ours, b"y\n")
    await typed.until_asked(control)
    control.put("ada", steps=[step])
    await typed.until("Saving memory", "25%")
    control.put("ada", phase=Phase.SUSPENDED)
    await typed.until("RESULT", "done")
    assert await typed.end() == 0


async def test_terminal_takes_no_answer_for_a_no(service, control):
    control.put("ada", usage=unused(3600))
    typed = Typed(service, "suspend", "--idle-for=10m")
    await typed.until("Suspend this session? [y/N]")
    os.write(typed.ours, b"\n")
    assert await typed.end() == sessions.FAILED
    assert control.calls == []


async def test_session_that_was_used_while_one_was_asked_is_left_alone(
    service, control
):
    control.put("ada", usage=unused(3600))
    typed = Typed(service, "suspend", "--idle-for=10m")
    await typed.until("[y/N]")
    control.put("ada", usage=unused(1))
    os.write(typed.ours, b"y\n")
    await typed.until("No session fits.")
    assert await typed.end() == 0
    assert control.calls == []

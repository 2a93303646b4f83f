"""A restored program that is killed while its memory is on the card.

A driver was reported to bring its whole machine down by that (NVIDIA's issue
cuda-checkpoint#53: open kernel modules 595.71.05, two Blackwell cards). A kernel's
restart does it, inside of the session: nobody could empty the card before.
"""

import os
import signal

from tests.support.agent import wait_for

FILL = """
import torch
torch.set_num_threads(1)
x = torch.arange(1 << 28, device="cuda", dtype=torch.float32)
"""


def test_card_works_after_restored_programs_were_killed(session, driver):
    """Three times, since that driver did it each time, half a minute later."""
    for _ in range(3):
        one = session()
        one(FILL + "None")
        before = one("float(x.sum())")
        one.cycle()
        assert one("float(x.sum())") == before
        for pid in one.pids:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not one.place.alive)  # noqa: B023 awaited at once

        other = session()
        other(FILL + "None")
        assert other("float(x.sum())") == before
        assert driver.present()

"""Drains that meet faults, in the simulator: nothing waits for longer than there is."""

from __future__ import annotations

import asyncio

from jupyterhub_gpu_reclaim.common.drain import DrainOrder
from tests.support.simulated import simulated

SEVEN = ("ada", "bob", "cy", "dan", "eve", "fay", "gus")


@simulated(*SEVEN, settings={"backoff": 60.0, "tick_interval": 10.0})
async def test_agent_that_restarts_in_the_middle_costs_nobody_their_place(stage):
    report = stage.controller.nodes.drain("", DrainOrder(seconds=60.0), "root")
    await stage.until(lambda: "suspending" in stage.phases().values())
    stage.world.machine(0).agent.kill()
    refused = set()
    while stage.world.loop.time() < 60.0 + 2.0:
        (report,) = stage.controller.nodes.drains()
        refused |= {each.key for each in report.sessions if each.state == "refused"}
        await asyncio.sleep(0.5)
    assert set(stage.phases().values()) == {"suspended"}
    assert not refused


@simulated(*SEVEN, settings={"backoff": 60.0, "tick_interval": 10.0})
async def test_what_fails_in_a_drain_is_tried_again_before_its_end(stage):
    stage.controller.nodes.drain("", DrainOrder(seconds=60.0), "root")
    stage.world.kernel.failing = 1.0
    await asyncio.sleep(15.0)
    stage.world.kernel.failing = 0.0
    await asyncio.sleep(45.0)
    assert set(stage.phases().values()) == {"suspended"}

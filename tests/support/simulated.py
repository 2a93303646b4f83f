"""One installation in the simulator, for a test that tells a story of its own.

What a test calls is the control plane's public face (``controller``) and what a person
or a fault does (``people``, ``world``). Service, agents and spawners are the product's
own code, time is virtual, and the simulator's laws hold beside what the test asserts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.node.workflows import recovery
from simulation import runner
from simulation.doubles.kernel import installed
from simulation.loop import VirtualLoop
from simulation.people import People
from simulation.plan import Plan
from simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jupyterhub_gpu_reclaim.common.models import SessionView
    from jupyterhub_gpu_reclaim.controlplane.api.controller import Controller


class Stage:
    """The world of a test, and its people."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.people = People(world)

    @property
    def now(self) -> float:
        return self.world.loop.time()

    @property
    def controller(self) -> Controller:
        """Of the service that works."""
        service = self.world.working()
        assert service is not None
        assert service.controller is not None
        return service.controller

    def view(self, key: SessionKey) -> SessionView:
        return self.controller.users.session(key)

    def phase(self, key: SessionKey) -> str:
        return self.view(key).phase.value

    def phases(self) -> dict[str, str]:
        return {v.key.user: v.phase.value for v in self.controller.users.sessions()}

    async def until(self, condition: Callable[[], object], limit: float = 300.0):
        """Wait until it holds, in simulated seconds; its last value."""
        end = self.now + limit
        while not (value := condition()):
            assert self.now < end, f"not within {limit:g} s"
            await asyncio.sleep(0.1)
            self.check()
        return value

    async def begin(self) -> None:
        """Start everything; all users come, and their servers run."""
        self.world.start()
        await self.until(lambda: self.world.working() is not None)
        await asyncio.gather(*map(self.people.visit, self.world.plan.keys))
        await self.until(lambda: set(self.phases().values()) == {"running"})

    def check(self) -> None:
        """Whether the simulator's laws hold."""
        assert not self.world.history.violations, self.world.history.violations


def play(
    story: Callable[[Stage], Awaitable[None]],
    *names: str,
    settings: dict[str, object] | None = None,
    **plan,
) -> None:
    """Run a story to its end.

    Args:
        story: what happens once all users' servers run.
        names: of the users; one, unless they are told.
        settings: limits of the service, where they are to be others.
        plan: what else a :class:`Plan` has.
    """
    keys = tuple(SessionKey(name) for name in names or ("ada",))
    loop = VirtualLoop()
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=runner.FOLDER) as folder:
        world = World(Plan(1, keys, **plan), Path(folder), loop)
        world.settings = dataclasses.replace(world.settings, **settings or {})

        async def whole() -> None:
            stage = Stage(world)
            try:
                await stage.begin()
                await story(stage)
                stage.check()
            finally:
                world.restarts = False
                for program in world.programs:
                    program.kill()

        try:
            table = world.substitutes()
            with installed(world.kernel, random.Random("names"), table):
                loop.run_until_complete(whole())
        finally:
            recovery._kept.clear()
            loop.close()


def simulated(*names: str, **plan):
    """Make a test of a coroutine that is given a :class:`Stage`; see :func:`play`."""

    def decorate(story):
        @functools.wraps(story)
        def test(**given) -> None:
            play(lambda stage: story(stage, **given), *names, **plan)

        told = inspect.signature(story)
        others = list(told.parameters.values())[1:]
        test.__signature__ = told.replace(parameters=others)
        return test

    return decorate

"""Runs one plan: to its end, through the peace after it, and up to the last visit.

After the span of a plan all faults are mended, and the installation is left alone.
Within :data:`SETTLE` simulated seconds every session must rest; then each user comes
back, and must find the newest state that there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import math
import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import HubState, Phase, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.session import LIVE
from jupyterhub_gpu_reclaim.node.workflows import recovery
from simulation.checkers import is_after
from simulation.doubles.kernel import installed
from simulation.faults import Faults
from simulation.loop import VirtualLoop
from simulation.people import People
from simulation.plan import SPAN, Plan, draw
from simulation.world import Tracebacks, World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyterhub_gpu_reclaim.common.models import SessionView

#: Seconds after the last fault within which everything must have come to rest.
SETTLE = 900.0
#: Seconds within which somebody who comes back must have their session.
RETURN = 400.0
#: Seconds within which a nap or a wake that was ordered must be.
OBEYED = 120.0
#: Seconds within which one that wakes on a crowded card must have room: the others are
#: idle within a minute, or have cooled down.
SERVED = 150.0
#: In memory: a disk's syncs would be waited for in real time.
FOLDER = "/dev/shm"
_SECOND = Reason.SECOND_TREE.value
_RESTS = {*LIVE, Phase.SUSPENDED, Phase.STOPPED}


@dataclass
class Result:
    plan: Plan
    violations: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    digest: str = ""
    turns: int = 0
    steps: int = 0

    @property
    def failed(self) -> bool:
        return bool(self.violations)


class Run:
    def __init__(self, world: World) -> None:
        self._world = world
        self._people = People(world)
        self._faults = Faults(world)
        self._begun: list[asyncio.Task[None]] = []

    async def whole(self) -> None:
        """All of it; ends early once a law was broken."""
        self._world.start()
        try:
            await self._events()
            await self._heal()
            await self._returns()
        except _Broken:
            pass
        finally:
            self._world.restarts = False
            for program in self._world.programs:
                program.kill()

    async def _events(self) -> None:
        world = self._world
        for event in world.plan.events:
            await self._until(event.at)
            who = self._people if self._people.do(event.what) else self._faults
            self._begun.append(asyncio.create_task(who.act(event)))
        await self._until(SPAN)

    async def _heal(self) -> None:
        world = self._world
        for task in self._begun:
            task.cancel()
        self._faults.heal()
        for program in world.programs:
            if program.paused:
                program.paused = False
                world.loop.resume(program)
        world.history.say("all faults are over")
        end = world.loop.time() + SETTLE
        while not self._rests():
            if world.loop.time() > end:
                world.history.wrong("all comes to rest", self._unrest())
            await self._until(world.loop.time() + 15.0)
        await self._until(world.loop.time() + 60.0)

    def _rests(self) -> bool:
        return not self._unrest()

    def _unrest(self) -> str:
        world = self._world
        service = world.working()
        if service is None or service.controller is None or world.hub is None:
            return "a program does not come up"
        if len(world.agents) < len(world.machines.by_name):
            return "an agent does not come up"
        if not world.rename_back():
            return "an account does not get its name back"
        views = service.controller.users.sessions()
        if found := self._session_unrest(views) or self._tree_unrest(views):
            return found
        for key in world.plan.keys:
            if world.hub.pending.get(key):
                return f"{key} stays pending at the Hub"
        return ""

    def _session_unrest(self, views: list[SessionView]) -> str:
        has_no_room = self._card_is_held(views)
        for view in views:
            if view.phase not in _RESTS:
                return f"{view.key} stays {view.phase.value}"
            waits = view.facts.intent == "wake" and has_no_room
            if view.facts.intent in {"nap", "wake"} and not waits:
                return f"{view.key} does not {view.facts.intent}, as it was ordered to"
        return ""

    def _card_is_held(self, views: list[SessionView]) -> bool:
        """Whether who wakes may wait for room: by what is never idle, or is reported.

        What the Hub does not know naps for nobody until a person comes to it.
        """
        return self._world.never_idle or any(map(_has_a_second_tree, views))

    def _tree_unrest(self, views: list[SessionView]) -> str:
        world = self._world
        phases = {view.incarnation: view.phase for view in views}
        waits = self._card_is_held(views)
        for machine in world.machines:
            for place in machine.places.values():
                if place.tree is None:
                    continue
                naps = world.naps(place)
                if place.tree.stopped and not naps:
                    return f"the tree of {place.key} stays frozen"
                unread = place.tree.unread or world.is_to_wake(place)
                if unread and not waits:
                    return f"{place.key} naps, whatever it is sent"
                known = phases.get(place.incarnation)
                if known is (Phase.RUNNING if naps else Phase.NAPPING):
                    return f"whether {place.key} naps, the service does not know"
        return ""

    async def _returns(self) -> None:
        self._people.undrain_all()
        for key in self._world.plan.keys:
            await self._come_back(key)
            if self._world.plan.naps and not self._world.plan.crowded:
                with contextlib.suppress(ReclaimError):
                    await self._nap(key)
        if self._world.plan.crowded:
            await self._turns()

    async def _turns(self) -> None:
        """Each wakes in its turn: whoever finds the card full has room in time.

        All others have just worked, so that none of them naps by itself until then.
        """
        world = self._world
        if world.never_idle:
            return
        for key in (*world.plan.keys, *world.plan.keys):
            place = world.reached(key)
            if place is None or place.tree is None:
                continue
            for other in world.plan.keys:
                await self._people.work(other)
            if not place.tree.runs:
                place.tree.unread = 1
            end = world.loop.time() + SERVED
            # One that is suspended meanwhile comes back as any other.
            while place in world.machines.of_session(key) and (
                place.tree is not None and place.tree.unread
            ):
                if world.loop.time() > end:
                    law = "who wakes has room in time"
                    world.history.wrong(law, f"{key} wakes, and waits for too long")
                await self._until(world.loop.time() + 2.0)

    async def _nap(self, key: SessionKey) -> None:
        """Nothing goes wrong any more: every order, and every message, has its effect.

        Raises:
            ReclaimError: it is being suspended just now.
        """
        world, place = self._world, self._world.running(key)
        service = world.working()
        tree = place.tree if place is not None else None
        if tree is None or not tree.on_gpu or not service or not service.controller:
            return
        if _has_a_second_tree(service.controller.users.session(key)):
            return  # it is left alone until a person ends one of the two
        assert place is not None
        frozen = any(other.stopped for other in world.machines.of(place.pid)[0].trees)
        if frozen or service.controller.waiting():
            return  # what waits for the room that a nap makes would take it
        users = service.controller.users
        await users.keep(key, 900.0, "admin", manages=True)
        for wake in ("wake", "write"):
            world.asked_to_nap[key] = world.loop.time()
            await users.nap(key, "admin")
            await self._until_it(key, Phase.NAPPING, "nap")
            if wake == "wake":
                await users.wake(key, "admin")
            else:
                await self._people.write(key)
            await self._until_it(key, Phase.RUNNING, wake)

    async def _until_it(self, key: SessionKey, phase: Phase, order: str) -> None:
        """Wait until agent and service say that a session is in that phase."""
        world = self._world
        end = world.loop.time() + OBEYED
        while True:
            service, place = world.working(), world.reached(key)
            if service is not None and service.controller and place is not None:
                view = service.controller.users.session(key)
                if _has_a_second_tree(view):
                    return  # seen only now: no order has an effect until it has gone
                naps = place.tree is not None and not place.tree.runs
                if view.phase is phase and naps is (phase is Phase.NAPPING):
                    return
            if world.loop.time() > end:
                law = "orders to nap and to wake are obeyed"
                world.history.wrong(law, f"{order} of {key} has no effect")
            await self._until(world.loop.time() + 2.0)

    async def _come_back(self, key: SessionKey) -> None:
        """Its user comes, and answers what is asked, until the session runs."""
        world = self._world
        newest = world.ledger.expected(key)
        end = world.loop.time() + RETURN
        why, room_since = "", math.inf
        while (place := world.running(key)) is None:
            now, has_room = world.loop.time(), world.has_room_for(key)
            room_since = min(room_since, now) if has_room else math.inf
            # Room that has just come free is found at the next look of the queue.
            if now > end and not (has_room and now <= room_since + SERVED):
                if newest and has_room:
                    world.history.wrong(
                        "the newest comes back", f"{key} does not come back: {why}"
                    )
                return
            try:
                await self._people.visit(key)
                await self._wake(key)
            except ReclaimError as error:
                why = error.message
                await self._answer(key, wanted=bool(newest))
            await self._until(world.loop.time() + 10.0)
        found = place.tree.contents if place.tree else ""
        world.history.say(f"{key.user} is back and finds {found}")
        # What they have sent to one that napped has been done since.
        if newest and not any(is_after(found, word) for word in newest):
            world.history.wrong(
                "the newest comes back",
                f"{key} finds {found}, and {' or '.join(newest)} is what it was",
            )

    async def _wake(self, key: SessionKey) -> None:
        place = self._world.reached(key)
        tree = place.tree if place is not None else None
        if tree is not None and not tree.runs:
            tree.unread = 1

    async def _answer(self, key: SessionKey, *, wanted: bool) -> None:
        """A person answers a question: what is saved shall come back, if it is theirs.

        What their account has not given up is; the rest is of a former one, or cannot
        come back.
        """
        service = self._world.working()
        if service is None or service.controller is None:
            return
        users = service.controller.users
        try:
            if not wanted:
                self._world.ledger.give_up_all(key)
                await users.start_fresh(key, key.user)
                return
            self._world.ledger.give_to_account(key)
            await users.renew_login(key, "admin")
            await users.resume(key, "admin", manages=True)
        except ReclaimError as error:
            self._world.history.say(f"that is refused: {error.reason.value}")

    async def _until(self, at: float) -> None:
        """Let time pass; stop when a law was broken."""
        world = self._world
        while (left := at - world.loop.time()) > 0:
            await asyncio.sleep(min(left, 5.0))
            if world.history.violations:
                raise _Broken
        if world.history.violations:
            raise _Broken


def _has_a_second_tree(view: SessionView) -> bool:
    return view.failure is not None and view.failure.code == _SECOND


class _Broken(Exception):
    """A law was broken: the rest of the run shows nothing more."""


def run_plan(plan: Plan, patches: Iterable[tuple[object, str, object]] = ()) -> Result:
    """Run one plan.

    Args:
        plan: what happens.
        patches: names to be replaced, as a mutant does.
    """
    loop = VirtualLoop()
    enabled = gc.isenabled()
    gc.disable()  # nothing of a dead program runs when it is collected
    _freeze()
    try:
        return _run(plan, patches, loop)
    finally:
        recovery._kept.clear()
        loop.close()
        if enabled:
            gc.enable()


@functools.cache
def _freeze() -> None:
    """What is imported is no garbage; once, since it takes long."""
    gc.freeze()


def _run(
    plan: Plan, patches: Iterable[tuple[object, str, object]], loop: VirtualLoop
) -> Result:
    folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=FOLDER))
    world = World(plan, folder, loop)
    names = random.Random(f"names {plan.seed}")
    table = [*world.substitutes(), *patches]
    try:
        with installed(world.kernel, names, table), _listening(world):
            loop.run_until_complete(Run(world).whole())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    history = world.history
    return Result(
        plan,
        list(history.violations),
        list(history.lines),
        history.digest,
        loop.turns,
        world.steps,
    )


@contextlib.contextmanager
def _listening(world: World) -> Iterator[None]:
    """Hear the errors in the product's log, and nothing else of it."""
    log = logging.getLogger("jupyterhub_gpu_reclaim")
    handler = Tracebacks(world)
    level, propagates = log.level, log.propagate
    log.setLevel(logging.ERROR)
    log.propagate = False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates


def run_seed(seed: int, patches: Iterable[tuple[object, str, object]] = ()) -> Result:
    return run_plan(draw(seed), patches)


__all__ = ["HubState", "Result", "run_plan", "run_seed"]

"""What people do in a run: users at their servers, and an administrator.

Each act is what a click does. What the product refuses is no fault; that it says why is
looked at. A word that gives something up for good (stop, start fresh, discard, delete)
is told to the ledger before it is said, since a lost answer may still be obeyed.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.drain import DrainOrder
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import HubState, Phase, SessionKey

if TYPE_CHECKING:
    from simulation.plan import Event
    from simulation.world import World


class People:
    def __init__(self, world: World) -> None:
        self._world = world
        self._deleting: set[SessionKey] = set()
        self._acts: dict[str, Any] = {
            "visit": self.visit,
            "work": self.work,
            "suspend": self.suspend,
            "resume": self.resume,
            "stop": self.stop,
            "start fresh": self.start_fresh,
            "discard": self.discard,
            "keep": self.keep,
            "delete": self.delete,
            "bring back": self.bring_back,
            "reload": self.visit,
            "save": self.save,
            "nap": self.nap,
            "wake": self.wake,
            "write": self.write,
            "begin what cannot come back": self.begin_stuck,
            "end what cannot come back": self.end_stuck,
            "drain": self.drain,
            "drain in time": self.drain_in_time,
            "rename": self.rename,
        }

    def do(self, what: str) -> bool:
        return what in self._acts

    async def act(self, event: Event) -> None:
        assert event.key is not None
        self._world.history.say(f"{event.key.user}: {event.what}")
        try:
            await self._acts[event.what](event.key, event)
        except ReclaimError as error:
            self._world.history.say(f"that is refused: {error.reason.value}")
            if not error.message:
                self._world.history.wrong(
                    "refusals have reasons", f"{event.what} of {event.key}"
                )

    # --- at the Hub
    async def visit(self, key: SessionKey, event: Event | None = None) -> None:
        """Open the session's page: the Hub starts it where it does not run."""
        del event
        hub = self._world.hub
        if hub is not None and await hub.server(key) is HubState.STOPPED:
            await hub.start(key)

    async def work(self, key: SessionKey, event: Event | None = None) -> None:
        """Run a cell: its memory is another one afterwards."""
        del event
        place = self._world.running(key)
        if place is not None and place.tree is not None:
            self._world.ledger.work(key, place.tree)
            machine = self._world.machines.of(place.pid)[0]
            place.tree.used(self._world.loop.time(), machine.skew)
            self._world.history.say(f"{key} holds {place.tree.contents} now")
            self._world.grow(place)

    async def write(self, key: SessionKey, event: Event | None = None) -> None:
        """Run a cell in a session that naps: it is read when it is awake."""
        place = self._world.reached(key)
        if place is None or place.tree is None or place.tree.runs:
            await self.work(key, event)
        else:
            place.tree.unread += 1

    async def begin_stuck(self, key: SessionKey, event: Event) -> None:
        """A program of theirs opens something with which no return succeeds."""
        del event
        self._stuck(key, stuck=True)

    async def end_stuck(self, key: SessionKey, event: Event) -> None:
        del event
        self._stuck(key, stuck=False)

    def _stuck(self, key: SessionKey, *, stuck: bool) -> None:
        place = self._world.running(key)
        if place is not None and place.tree is not None:
            place.tree.stuck = stuck

    async def stop(self, key: SessionKey, event: Event) -> None:
        del event
        hub = self._world.hub
        if hub is not None and await hub.server(key) is not HubState.STOPPED:
            self._world.ledger.give_up_all(key)
            # A stop so soon after the service's own may be that one: it is saved.
            self._world.asked[key] = self._world.loop.time()
            await hub.stop(key)

    async def delete(self, key: SessionKey, event: Event) -> None:
        """The administrator deletes the user, and makes one of that name again."""
        hub = self._world.hub
        if hub is None or not await self._may_delete(key):
            return
        self._world.ledger.give_up_all(key)
        self._deleting.add(key)
        accounts = self._world.database.accounts
        account = accounts.get(key.user, "")
        try:
            if not await hub.delete(key):
                return
            self._world.ledger.account_deleted(key, account)
            try:
                await asyncio.sleep(event.share * 60.0)
            finally:
                if self._world.database.accounts is accounts:  # else it is put back
                    self._world.add_account(key.user)
        finally:
            self._deleting.discard(key)

    async def _may_delete(self, key: SessionKey) -> bool:
        hub = self._world.hub
        there = key.user in self._world.database.accounts
        return there and hub is not None and await hub.server(key) is HubState.STOPPED

    async def rename(self, key: SessionKey, event: Event) -> None:
        """The administrator renames a user, who comes by; then back again.

        Their session, running or saved, has the former name in its address and logins.
        """
        world, new = self._world, self._world.renamed(key)
        if key in self._deleting or not world.rename(key, new):
            return
        try:
            await asyncio.sleep(event.share * 90.0)
            account = world.database.accounts.get(new.user, "")
            if world.hub is not None and world.ledger.is_left(key, account):
                try:
                    await self.visit(new)
                except ReclaimError as error:
                    world.history.say(f"{new.user} is refused: {error.reason.value}")
                if world.machines.of_session(new):
                    law = "no cold start in silence"
                    world.history.wrong(law, f"{new} has a place, {key} is saved")
            await asyncio.sleep(event.share * 20.0)
        finally:
            world.rename(new, key)

    # --- at the service's pages
    async def drain(self, key: SessionKey, event: Event) -> None:
        """The administrator suspends whatever runs on one machine."""
        del key
        places = self._world.machine(event.count).places.values()
        for each in dict.fromkeys(place.key for place in places if place.tree):
            with suppress(ReclaimError):
                await self.suspend(each, event)

    async def drain_in_time(self, key: SessionKey, event: Event) -> None:
        """The administrator drains one machine, and some time later no more."""
        del key
        world, machine = self._world, self._world.machine(event.count)
        node = machine.name if world.plan.nodes else ""
        hurried = DrainOrder(
            seconds=event.share * 120.0 + 1.0, comes_back=bool(world.plan.nodes)
        )
        if not (nodes := self._nodes()):
            return
        world.drained[machine.name] = math.inf
        nodes.drain(node, hurried if event.count % 2 else DrainOrder(), "admin")
        await asyncio.sleep(event.share * 180.0)
        if nodes := self._nodes():
            with suppress(ReclaimError):
                nodes.undrain(node, "admin")
                world.drained[machine.name] = world.loop.time()

    def undrain_all(self) -> None:
        if nodes := self._nodes():
            for report in nodes.drains():
                nodes.undrain(report.drain.node, "admin")

    def _nodes(self) -> Any:
        service = self._world.working()
        return service.controller.nodes if service and service.controller else None

    def _users(self) -> Any:
        service = self._world.working()
        return service.controller.users if service and service.controller else None

    async def suspend(self, key: SessionKey, event: Event) -> None:
        del event
        if users := self._users():
            self._world.asked[key] = self._world.loop.time()
            await users.suspend(key, key.user)

    async def save(self, key: SessionKey, event: Event) -> None:
        del event
        if users := self._users():
            await users.save(key, key.user)

    async def nap(self, key: SessionKey, event: Event) -> None:
        del event
        if users := self._users():
            self._world.asked_to_nap[key] = self._world.loop.time()
            await users.nap(key, "admin")

    async def wake(self, key: SessionKey, event: Event) -> None:
        del event
        if users := self._users():
            await users.wake(key, "admin")

    async def resume(self, key: SessionKey, event: Event | None = None) -> None:
        del event
        if users := self._users():
            await users.resume(key, key.user)

    async def start_fresh(self, key: SessionKey, event: Event) -> None:
        del event
        users = self._users()
        if users is None:
            return
        if users.session(key).phase is Phase.SUSPENDED:
            self._world.ledger.give_up_all(key)
        await users.start_fresh(key, key.user)
        await self.visit(key)

    async def discard(self, key: SessionKey, event: Event) -> None:
        del event
        users = self._users()
        if users is not None:
            if users.session(key).phase is Phase.SUSPENDED:
                self._world.ledger.give_up_all(key)
            await users.delete(key, key.user)

    async def keep(self, key: SessionKey, event: Event) -> None:
        if users := self._users():
            await users.keep(key, event.share * 300.0, key.user)

    async def bring_back(self, key: SessionKey, event: Event) -> None:
        users = self._users()
        if users is None:
            return
        view = users.session(key)
        if view.saved:
            chosen = view.saved[int(event.share * len(view.saved))].id
            undo = self._world.ledger.choose(key, chosen)
            self._world.asked[key] = self._world.loop.time()
            try:
                await users.bring_back(key, chosen, key.user, save_running=True)
            except ReclaimError:
                undo()
                raise

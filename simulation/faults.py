"""What goes wrong in a run. Each fault is one event of a plan, and ends by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.controlplane.settings import Settings
from simulation.doubles.machine import GIB, PIDS
from simulation.doubles.network import NOBODY

if TYPE_CHECKING:
    from simulation.doubles.hub import Database
    from simulation.doubles.machine import Machine
    from simulation.loop import Program
    from simulation.plan import Event
    from simulation.world import World


#: After which the kubelet of a node that is back ends the pods that were deleted.
KUBELET_SECONDS = 5.0
#: A CRIU of an agent that has ended is gone by then, and what stands is let go on.
RESCUE_SECONDS = 5.0


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        self._second: Any = None
        self._acts: dict[str, Any] = {
            "the service is killed": self.kill_service,
            "the agent is killed": self.kill_agent,
            "the Hub is killed": self.kill_hub,
            "calls are lost": self.lose,
            "calls arrive twice": self.double,
            "calls are late": self.slow,
            "the machine is cut off": self.cut,
            "the store is away": self.store_away,
            "the store fails now and then": self.store_fails,
            "deletions fail after they were done": self.store_late,
            "the store is unmounted": self.store_unmounted,
            "the store is slow": self.store_slow,
            "the store is full": self.store_full,
            "the state folder is full": self.state_full,
            "the journal's disk is full": self.disk_full,
            "the journal is backed up": self.back_up,
            "the journal is put back": self.put_back,
            "the journal is lost": self.lose_journal,
            "the Hub's database is backed up": self.back_up_hub,
            "the Hub's database is put back": self.put_back_hub,
            "both databases are backed up": self.back_up_both,
            "both databases are put back": self.put_back_both,
            "a second service starts": self.second_service,
            "the service is paused": self.pause_service,
            "a former service's orders are late": self.former_orders,
            "a return is called off": self.call_off_return,
            "others take the GPU": self.take_gpu,
            "the tree dies": self.tree_dies,
            "the tree is woken": self.tree_wakes,
            "the machine loses power": self.power_cut,
            "CRIU and the driver fail": self.criu_fails,
            "the clock jumps": self.clock_jumps,
            "the settings change": self.settings_change,
            "the machine is gone for a while": self.node_gone,
            "the agent is gone for good": self.agent_gone,
            "the API server is away": self.api_server_away,
        }

    async def act(self, event: Event) -> None:
        self._world.history.say(f"fault: {event.what}")
        await self._acts[event.what](event)

    # --- programs
    @staticmethod
    def _kill(program: Program, event: Event) -> None:
        """At a write, or at an await, soon."""
        if event.share < 0.5:
            program.writes_left = 1 + event.count % 10
        else:
            program.turns_left = event.count * 4

    async def kill_service(self, event: Event) -> None:
        if self._world.services:
            self._kill(self._world.services[-1].program, event)

    async def kill_agent(self, event: Event) -> None:
        program = self._world.machine(event.count).agent
        if program is not None:
            self._kill(program, event)

    async def kill_hub(self, event: Event) -> None:
        if self._world.hub is not None:
            self._kill(self._world.hub.program, event)

    async def second_service(self, event: Event) -> None:
        """A rolling update: the old one goes when the new one is there."""
        world = self._world
        if not world.services:
            return
        old = world.services[0]
        world.start_service()
        await asyncio.sleep(event.share * 60.0)
        if event.count % 2 and old in world.services:
            old.program.kill()

    async def pause_service(self, event: Event) -> None:
        """A suspended virtual machine: the program stands, and goes on as if not."""
        services = self._world.services
        if services:
            program = services[-1].program
            program.paused = True
            await asyncio.sleep(5.0 + event.share * 40.0)
            program.paused = False
            self._world.loop.resume(program)

    async def former_orders(self, event: Event) -> None:
        """What a service has ordered arrives after its successor has begun."""
        weather = self._world.weather
        weather.holding = 15.0 + event.share * 30.0
        await asyncio.sleep(2.0 + event.count)
        weather.holding = 0.0
        for service in list(self._world.services):
            service.program.kill()

    async def call_off_return(self, event: Event) -> None:
        """A stop while it starts: its checkpoint is kept, and nothing is given up."""
        hub, key = self._world.hub, event.key
        if hub is None or key is None or hub.pending.get(key) != "spawn":
            return
        if self._world.ledger.saved(key):
            await hub.stop(key)

    async def power_cut(self, event: Event) -> None:
        """A machine starts again; on one machine, the Hub with it."""
        world = self._world
        machine = world.machine(event.count)
        if machine.agent is not None:
            machine.agent.kill()
        if world.cluster is None and world.hub is not None:
            world.hub.program.kill()
        machine.reboot()

    async def node_gone(self, event: Event) -> None:
        """A node is off, or only out of sight: then it comes back as it was."""
        world = self._world
        if world.cluster is None:
            return
        machine = world.machine(event.count)
        machine.up = False
        world.weather.deaf.add(machine.name)
        if event.share < 0.5 and machine.agent is not None:
            machine.agent.kill()
        await asyncio.sleep(20.0 + event.share * 200.0)
        self._back(machine, off=event.share < 0.5)

    def _back(self, machine: Machine, *, off: bool) -> None:
        machine.up = True
        self._world.weather.deaf.discard(machine.name)
        if off:
            machine.reboot()
        self._world.start_agent(machine)
        cluster = self._world.cluster
        if cluster is not None:
            self._world.loop.call_later(
                KUBELET_SECONDS, cluster.node_is_back, machine.name, context=NOBODY
            )

    async def agent_gone(self, event: Event) -> None:
        """Removed, or broken by a setting: what is frozen is let go on without it."""
        world = self._world
        machine = world.machine(event.count)
        machine.agentless += 1
        if machine.agent is not None:
            machine.agent.kill()
        await asyncio.sleep(RESCUE_SECONDS)
        # Else another agent, or the end of one, holds the lock.
        if machine.agentless and machine.rescue is None:
            await world.rescue_all(machine)
        await asyncio.sleep(60.0 - RESCUE_SECONDS)
        await asyncio.sleep(event.share * 60.0)
        machine.agentless = max(0, machine.agentless - 1)
        world.start_agent(machine)

    async def api_server_away(self, event: Event) -> None:
        if self._world.cluster is not None:
            self._world.cluster.away = True
            await asyncio.sleep(5.0 + event.count * 2.0)
            self._world.cluster.away = False

    # --- the network
    async def lose(self, event: Event) -> None:
        await self._while("lost", 0.05 + 0.4 * event.share, event)

    async def double(self, event: Event) -> None:
        await self._while("doubled", 0.5, event)

    async def slow(self, event: Event) -> None:
        await self._while("slow", 40.0 * event.share, event)

    async def cut(self, event: Event) -> None:
        """The agent is there, and nobody reaches it."""
        name = self._world.machine(event.count).name
        self._world.weather.deaf.add(name)
        await asyncio.sleep(5.0 + event.count * 3.0)
        self._world.weather.deaf.discard(name)

    async def _while(self, name: str, value: float, event: Event) -> None:
        setattr(self._world.weather, name, value)
        await asyncio.sleep(5.0 + event.count * 3.0)
        setattr(self._world.weather, name, 0.0)

    # --- store and disks
    async def store_away(self, event: Event) -> None:
        await self._store("away", True, event)

    async def store_fails(self, event: Event) -> None:
        await self._store("failing", 0.1 + 0.4 * event.share, event)

    async def store_late(self, event: Event) -> None:
        await self._store("late_failing", 0.7, event)

    async def store_unmounted(self, event: Event) -> None:
        """An empty folder is in its place, and takes whatever is written."""
        self._world.store.volume.mounted = False
        await asyncio.sleep(5.0 + event.count * 4.0)
        self._world.store.volume.mounted = True

    async def store_slow(self, event: Event) -> None:
        await self._store("slow", 40.0 * event.share, event)

    async def store_full(self, event: Event) -> None:
        await self._store("full", True, event)

    async def _store(self, name: str, value: Any, event: Event) -> None:
        before = type(value)()
        setattr(self._world.store, name, value)
        await asyncio.sleep(5.0 + event.count * 4.0)
        setattr(self._world.store, name, before)

    async def state_full(self, event: Event) -> None:
        machine = self._world.machine(event.count)
        machine.state_full = True
        await asyncio.sleep(5.0 + event.count * 4.0)
        machine.state_full = False

    async def disk_full(self, event: Event) -> None:
        self._world.disk.full = True
        await asyncio.sleep(5.0 + event.count * 2.0)
        self._world.disk.full = False

    # --- databases
    async def back_up(self, event: Event) -> None:
        del event
        self._world.backup = self._world.copy_journal()

    async def put_back(self, event: Event) -> None:
        del event
        if self._world.backup is not None:
            self._restore_journal(self._world.backup)

    async def lose_journal(self, event: Event) -> None:
        del event
        self._restore_journal(None)

    def _restore_journal(self, backup: tuple[bytes, bytes] | None) -> None:
        for service in list(self._world.services):
            service.program.kill()
        self._world.put_journal(backup)
        self._world.ledger.orders_lost()

    async def back_up_hub(self, event: Event) -> None:
        del event
        self._world.hub_backup = self._world.database.copy()

    async def put_back_hub(self, event: Event) -> None:
        del event
        if self._world.hub_backup is not None:
            self._restore_hub(self._world.hub_backup)

    def _restore_hub(self, backup: Database) -> None:
        if self._world.hub is not None:
            self._world.hub.program.kill()
        self._world.database.put_back(backup)

    async def back_up_both(self, event: Event) -> None:
        """The folder or the machine of the Hub and its service, at one moment."""
        del event
        world = self._world
        world.backup_of_both = (world.copy_journal(), world.database.copy())

    async def put_back_both(self, event: Event) -> None:
        del event
        if self._world.backup_of_both is not None:
            journal, database = self._world.backup_of_both
            self._restore_journal(journal)
            self._restore_hub(database)

    # --- machines
    async def take_gpu(self, event: Event) -> None:
        machine = self._world.machine(event.count)
        taken = min(int(event.share * 14) * GIB, machine.capacity - machine.used())
        machine.taken_by_others += taken
        await asyncio.sleep(5.0 + event.count * 10.0)
        machine.taken_by_others -= taken

    async def tree_dies(self, event: Event) -> None:
        """The kernel's OOM killer, or a crash of the server."""
        assert event.key is not None
        for machine in self._world.machines:
            for place in list(machine.places.values()):
                if place.key == event.key:
                    machine.end(place, "fault: the OOM killer")

    async def tree_wakes(self, event: Event) -> None:
        """A SIGCONT by its user, from another session of theirs."""
        assert event.key is not None
        for place in self._world.machines.of_session(event.key):
            if place.tree is not None and place.tree.frozen and place.tree.whole:
                woken = PIDS[: 1 + int(event.share * 3)]
                place.tree.stopped -= set(woken)
                # It works on, unless that is documented not to count: its connections
                # may be gone already, or its memory not be there yet.
                if place.tree.runs and not self._world.ends_as_saved(place):
                    self._world.ledger.work(place.key, place.tree)

    async def criu_fails(self, event: Event) -> None:
        self._world.kernel.failing = 0.2 + 0.6 * event.share
        await asyncio.sleep(5.0 + event.count * 5.0)
        self._world.kernel.failing = 0.0

    async def clock_jumps(self, event: Event) -> None:
        """The Hub's machine's; of a cluster, one node's as well, by another amount."""
        world = self._world
        world.clock_jumps((event.share - 0.5) * 2 * 3600.0)
        if world.cluster is None:
            world.machine(0).skew = world.skew
        else:
            world.machine(event.count).skew += (event.count % 3 - 1) * 60.0

    async def settings_change(self, event: Event) -> None:
        """An administrator changes limits; the service is started again."""
        values = dict(vars(self._world.settings))
        values.update(
            warn_for=0.0 if event.share < 0.5 else 20.0,
            grace=30.0 if event.count % 2 else 120.0,
            gpu_wait=0.0 if event.count % 3 == 0 else 120.0,
        )
        self._world.settings = Settings(**values)
        for service in list(self._world.services):
            service.program.kill()

    def heal(self) -> None:
        """Everything that can be mended is; what is lost stays lost."""
        world = self._world
        weather, store = world.weather, world.store
        weather.lost = weather.doubled = weather.slow = weather.holding = 0.0
        weather.deaf.clear()
        store.away = store.full = False
        store.volume.mounted = True
        store.failing = store.late_failing = store.slow = 0.0
        world.disk.full = False
        world.kernel.failing = 0.0
        for service in world.services[:-1]:
            service.program.kill()  # the update is over
        if world.cluster is not None:
            world.cluster.away = False
        for machine in world.machines:
            if not machine.up:
                self._back(machine, off=machine.name not in world.agents)
            machine.agentless = 0
            world.start_agent(machine)
            machine.skew = world.skew
            machine.state_full = False
            machine.taken_by_others = 0
        for program in world.programs:
            program.turns_left = program.writes_left = None

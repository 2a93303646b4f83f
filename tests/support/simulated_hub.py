"""The simulator's Hub by itself: one machine, and a service that a test gives it.

The mixin and its lifecycle are the real ones. It runs in virtual time, by :func:`run`.
"""

import itertools
import random
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from jupyterhub_gpu_reclaim.common.models import SessionKey
from simulation import loop
from simulation.doubles.hub import Database, HubProcess
from simulation.doubles.kernel import replaced
from simulation.doubles.machine import GIB, Machine, Machines, Place, ProgramTree
from simulation.doubles.network import Server, Weather
from simulation.doubles.spawner import substitutes


def run(work: Coroutine[Any, Any, None]) -> None:
    with replaced(substitutes(loop.LoopClock())):
        loop.run(work)


def started(folder: Path, service: object, *, users: Sequence[str]) -> HubProcess:
    machine = Machine("node1", 1, 16 * GIB, lambda *_: None)
    machines = Machines()
    machines.by_name[machine.name] = machine
    (folder / "token").write_text("secret")
    names = itertools.count(1)
    listens = Server(loop.Program("the service"), service)

    async def machine_for(key: SessionKey) -> Machine:
        del key
        return machine

    def place(
        machine: Machine,
        key: SessionKey,
        incarnation: str,
        *,
        session: str,
        account: str,
        login: tuple[str, int],
        cold: bool,
    ) -> Place:
        tree = ProgramTree("a", *login, gpu_bytes=0, on_gpu=False) if cold else None
        return machine.add(
            key, incarnation, tree=tree, session=session, account=account
        )

    hub = HubProcess(
        program=loop.Program("the Hub"),
        database=Database(accounts={user: user for user in users}),
        machines=machines,
        weather=Weather(random.Random(1)),
        folder=folder,
        rng=random.Random(1),
        service=lambda: listens,
        machine_for=machine_for,
        place=place,
        end=machine.end,
        told=lambda _: None,
        new_name=lambda: f"n{next(names)}",
    )
    loop.spawn(hub.program, hub.run())
    return hub

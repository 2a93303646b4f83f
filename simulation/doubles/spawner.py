"""A spawner of the Hub on one of the machines, under the product's own mixin.

``ReclaimMixin``, its lifecycle and its pointer are the real ones. What they stand on
is here: what ``LocalProcessSpawner`` does with processes, and the rows of one server in
the Hub's database (``hub/spawner/logins.py`` without SQL).
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.client import STARTING_LIMIT, STARTING_PAUSE
from jupyterhub_gpu_reclaim.hub.spawner import lifecycle, mixin
from jupyterhub_gpu_reclaim.hub.spawner.mixin import ReclaimMixin
from jupyterhub_gpu_reclaim.hub.spawner.placement import Launch
from jupyterhub_gpu_reclaim.hub.spawner.state import Location
from simulation.doubles.network import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import Event, SessionKey
    from simulation.doubles.hub import HubProcess
    from simulation.doubles.machine import Place

_log = logging.getLogger("jupyterhub_gpu_reclaim.simulation")


class LoginsInMemory:
    """The tokens and the state of one server, as ``logins.Logins`` keeps them."""

    def __init__(self, spawner: SimulatedSpawner) -> None:
        self._spawner = spawner

    @property
    def _database(self) -> Any:
        return self._spawner.hub_process.database

    def save_state(self) -> None:
        self._spawner.hub_process.save_state(self._spawner)

    def account(self) -> str:
        return str(self._database.accounts.get(self._spawner.key.user, ""))

    def token_id(self, token: str) -> int:
        for number, (value, user) in self._database.tokens.items():
            if value == token and user == self._spawner.key.user:
                return int(number)
        return 0

    def renew(self, token: str, minted: str) -> int:
        number = self.token_id(minted)
        if number:
            self._database.tokens[number] = (token, self._spawner.key.user)
        return number

    def take_scopes(self, number: int, minted: str) -> None:
        """Tokens have no scopes here."""

    def set_options(self, options: dict[str, Any]) -> None:
        self._spawner.user_options = dict(options)

    def hash_of(self, number: int) -> str:
        value, _ = self._database.tokens.get(number, ("", ""))
        return _hash(value) if value else ""

    def delete(self, number: int) -> None:
        self._database.tokens.pop(number, None)


def others(token: str, hashes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each for each in hashes if each != _hash(token))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:16]


class NoRepair:
    """Scopes of OAuth clients are not simulated."""

    @classmethod
    async def remember(cls, spawner: object) -> NoRepair:
        del spawner
        return cls()

    def apply(self, spawner: object) -> None:
        """Nothing was wiped."""


class ServiceOverWire:
    """The spawner's client of the service (``hub/client.py``)."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def _ask(self, call: str, what: object, *, limit: float) -> Any:
        """One call; a service that is being started is waited for."""
        now = asyncio.get_running_loop().time
        until = now() + STARTING_LIMIT
        while True:
            try:
                return await self._wire.ask(call, what, limit=limit)
            except Unreachable as error:
                starts = error.reason is Reason.SERVICE_STARTING
                if not starts or now() >= until:
                    raise
            await asyncio.sleep(STARTING_PAUSE)

    def __getattr__(self, call: str) -> Any:
        """Each call takes one thing: a placement, or a deletion."""
        limit = 180.0 if call in ("plan_start", "plan_stop", "release") else 10.0
        return functools.partial(self._ask, call, limit=limit)

    def progress(self, key: SessionKey) -> AsyncIterator[Event]:
        return self._wire.stream("progress", key, silence=3600.0)


class ProcessesOnMachine:
    """What ``SessionProcessSpawner`` does, with the values of a machine."""

    log = _log
    reclaim_launch = Launch()
    user_options: dict[str, Any] = {}  # noqa: RUF012 - none is ever changed
    hub_process: HubProcess
    key: SessionKey
    location: Location
    port: int
    api_token: str

    async def start(self) -> tuple[str, int]:
        await asyncio.sleep(self.hub_process.rng.uniform(0.05, 0.5))
        machine = await self.hub_process.machine_for(self.key)
        self.port = self.port or self.hub_process.new_port()
        place = self.hub_process.place(
            machine,
            self.key,
            self.reclaim_launch.incarnation,
            session=self.reclaim_launch.session,
            account=self.reclaim_launch.account,
            login=(self.api_token, self.port),
            cold=self.reclaim_launch.mode == "start",
        )
        self.location = Location(pid=place.pid, start=place.start, pod=place.pod)
        return ("127.0.0.1", self.port)

    async def poll(self) -> int | None:
        await asyncio.sleep(0)
        return None if self.place is not None else 0

    async def stop(self, now: bool = False) -> None:
        del now
        await asyncio.sleep(self.hub_process.rng.uniform(0.05, 1.0))
        self.end("a stop by the Hub")

    def end(self, who: str) -> None:
        place = self.place
        if place is not None:
            self.hub_process.end(place, who)

    @property
    def place(self) -> Place | None:
        for machine in self.hub_process.machines:
            for place in machine.places.values():
                if (place.pid, place.start) == (self.location.pid, self.location.start):
                    return place
        return None

    def clear_state(self) -> None:
        self.location = Location()
        self.api_token = ""

    def get_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Nothing of its own."""

    def start_polling(self) -> None:
        self.polled = True

    def add_poll_callback(self, *_: Any) -> None:
        self.watched = True

    def run_post_stop_hook(self) -> None:
        """Nothing: this Hub has no hooks."""

    async def delete_forever(self) -> None:
        """Nothing of its own."""

    async def rename(self, old: str, new: str) -> None:
        """Nothing of its own."""


class SimulatedSpawner(ReclaimMixin, ProcessesOnMachine):  # type: ignore[misc]
    """Both together, as ``ReclaimLocalSpawner``."""

    _check_pending = False
    will_resume = False
    polled = watched = False
    api_token = ""
    port = 0

    def __init__(self, hub: HubProcess, key: SessionKey) -> None:
        super().__init__()
        self.hub_process = hub
        self.reclaim_cleanups = hub.cleanups  # type: ignore[misc]
        self.key = key
        self.location = Location()
        self.user_options: dict[str, Any] = {}
        self.orm_spawner = object()
        self.reclaim_service = "simulated"
        self.reclaim_token_file = str(hub.folder / "token")
        self._wire = ServiceOverWire(
            Wire(hub.weather, hub.program, hub.service, Reason.SERVICE_UNREACHABLE)
        )

    @property
    def reclaim_key(self) -> SessionKey:
        return self.key

    reclaim_fresh_url = reclaim_spawn_url = _prefix = _pages = ""

    def _is_inside(self) -> bool:
        return False

    def _service(self) -> Any:
        return self._wire

    def reclaim_location(self) -> Location:
        return self.location

    def reclaim_take(self, location: Location) -> None:
        self.location = location

    def reclaim_alive(self) -> bool:
        return self.place is not None

    def reclaim_frozen(self) -> bool | None:
        place = self.place
        if place is not None and place.pod:
            return None  # it cannot be seen from here
        return place is not None and place.tree is not None and place.tree.frozen

    async def reclaim_find(self, incarnation: str) -> Location | None:
        for place in self.hub_process.machines.of_session(self.key):
            if place.incarnation == incarnation:
                return Location(pid=place.pid, start=place.start, pod=place.pod)
        return None

    async def reclaim_where(self, port: int) -> tuple[str, int]:
        return ("127.0.0.1", port)

    async def reclaim_token(self) -> str:
        tree = self.place.tree if self.place else None
        return tree.token if tree else ""

    async def reclaim_port(self) -> int:
        tree = self.place.tree if self.place else None
        return tree.port if tree else 0

    async def reclaim_end(self) -> None:
        await asyncio.sleep(0.01)
        self.end("the spawner")
        self.reclaim_take(Location())


def substitutes(clock: Clock) -> list[tuple[Any, str, Any]]:
    """Names of the real lifecycle that stand for these doubles."""
    return [
        (lifecycle, "Logins", LoginsInMemory),
        (lifecycle, "ClientRepair", NoRepair),
        (lifecycle, "others", others),
        (mixin, "_CLOCK", clock),
    ]

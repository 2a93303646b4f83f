"""A Hub in memory, which does with spawners what JupyterHub 6.1 does.

Recorded from its source (``user.py`` ``spawn``, ``_wait_up``, ``stop``; ``app.py``
``init_spawners``; ``apihandlers/users.py``): when state is cleared and saved, which
token is made, kept and deleted, that a failed start and a dead server end in ``stop``,
that ``stop`` asks ``poll`` first and has no way back, that a started Hub checks every
server that it had and stops those that do not answer. Proxy, pages, OAuth clients and
scopes are not simulated.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import HubState, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.spawner.refusal import StartRefused
from simulation.doubles.machine import SERVER
from simulation.doubles.spawner import SimulatedSpawner
from simulation.loop import Killed, spawn

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from simulation.doubles.machine import Machine, Machines, Place
    from simulation.doubles.network import Server, Weather
    from simulation.loop import Program

_log = logging.getLogger("jupyterhub_gpu_reclaim.simulated_hub")

START_TIMEOUT = 300.0
HTTP_TIMEOUT = 30.0
POLL_SECONDS = 30.0
SLOW_SECONDS = 10.0  #: ``slow_spawn_timeout`` and ``slow_stop_timeout``
CANCEL_SECONDS = 1.0


@dataclass
class ServerRow:
    running: bool = False  #: ``orm.Spawner.server``
    state: dict[str, Any] = field(default_factory=dict)


@dataclass
class Database:
    servers: dict[SessionKey, ServerRow] = field(default_factory=dict)
    tokens: dict[int, tuple[str, str]] = field(default_factory=dict)
    accounts: dict[str, str] = field(default_factory=dict)
    numbers: int = 0

    def copy(self) -> Database:
        return copy.deepcopy(self)

    def rename(self, old: SessionKey, new: SessionKey) -> None:
        """An account has another name, as have its server and logins."""
        self.accounts[new.user] = self.accounts.pop(old.user)
        if (row := self.servers.pop(old, None)) is not None:
            self.servers[new] = row
        for number, (token, user) in self.tokens.items():
            if user == old.user:
                self.tokens[number] = (token, new.user)

    def put_back(self, backup: Database) -> None:
        self.__dict__.update(backup.copy().__dict__)


class HubProcess:
    def __init__(
        self,
        *,
        program: Program,
        database: Database,
        machines: Machines,
        weather: Weather,
        folder: Path,
        rng: random.Random,
        service: Callable[[], Server | None],
        machine_for: Callable[[SessionKey], Awaitable[Machine]],
        place: Callable[..., Place],
        end: Callable[[Place, str], None],
        told: Callable[[str], None],
        new_name: Callable[[], str],
    ) -> None:
        self.program = program
        self.database = database
        self.machines = machines
        self.weather = weather
        self.folder = folder
        self.rng = rng
        self.service = service
        self.machine_for = machine_for
        self.place = place
        self.end = end
        self.told = told
        self.new_name = new_name
        self.spawners: dict[SessionKey, SimulatedSpawner] = {}
        self.pending: dict[SessionKey, str] = {}
        self.cleanups: dict[SessionKey, asyncio.Task[None]] = {}
        self._starts: dict[SessionKey, asyncio.Task[Any]] = {}
        self.refusals: dict[SessionKey, str] = {}  #: why a start failed last
        self._ports = 40_000

    # --- its start
    async def run(self) -> None:
        """Check every server that it had, then poll those that run."""
        begun = [key for key, row in self.database.servers.items() if row.running]
        for key in begun:
            self.pending[key] = "check"
            spawn(self.program, self._check(key))
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for key, spawner in list(self.spawners.items()):
                if spawner.watched and key not in self.pending:
                    spawn(self.program, self._poll(key, spawner))

    async def _check(self, key: SessionKey) -> None:
        spawner = self._spawner(key)
        spawner._check_pending = True
        try:
            status = await spawner.poll()
        except Exception as error:  # noqa: BLE001 - as the Hub does
            self.told(f"the Hub could not poll {key}: {error}")
            status = -1
        if status is None and await self._wait_up(key, spawner):
            spawner.add_poll_callback(self._poll)
            spawner.start_polling()
        elif self.database.servers[key].running:
            await self._user_stop(key)
        spawner._check_pending = False
        self.pending.pop(key, None)

    async def _poll(self, key: SessionKey, spawner: SimulatedSpawner) -> None:
        status = await spawner.poll()
        if status is None or self.spawners.get(key) is not spawner:
            return
        if key in self.pending:
            return
        self.told(f"the Hub sees that {key} has ended")
        self.pending[key] = "stop"
        try:
            await self._user_stop(key)
        finally:
            self.pending.pop(key, None)

    # --- the API
    async def servers(self) -> dict[SessionKey, HubState]:
        found = {key: self._state(key) for key in self.database.servers}
        return {k: state for k, state in found.items() if state is not HubState.STOPPED}

    async def server(self, key: SessionKey) -> HubState:
        return self._state(key)

    def _state(self, key: SessionKey) -> HubState:
        pending = self.pending.get(key)
        if pending == "spawn":
            return HubState.SPAWNING
        if pending == "stop":
            return HubState.STOPPING
        if pending:
            return HubState.UNSETTLED
        row = self.database.servers.get(key)
        return HubState.RUNNING if row and row.running else HubState.STOPPED

    async def start(self, key: SessionKey) -> None:
        """``POST …/server``: a start, for which it waits for ten seconds."""
        if key.user not in self.database.accounts:
            raise Refused(Reason.HUB_REFUSED, why="no such user")
        if self.pending.get(key) == "spawn":
            return
        self._refuse_pending(key)
        if self._state(key) is HubState.RUNNING:
            spawner = self._spawner(key)
            if await spawner.poll() is None:
                return
            self._refuse_pending(key)
            self.pending[key] = "stop"
            try:
                await self._user_stop(key)
            finally:
                self.pending.pop(key, None)
        self.pending[key] = "spawn"
        task = spawn(self.program, self._spawn(key))
        self._starts[key] = task
        done, _ = await asyncio.wait({task}, timeout=SLOW_SECONDS)
        if task.cancelled():  # status 500, as long as nobody has answered
            raise Refused(
                Reason.OPERATION_IN_FLIGHT, operation="start or stop", retryable=True
            )
        if done and (error := task.exception()) is not None:
            if isinstance(error, Killed):
                raise error
            self.told(f"the start of {key} fails: {error!r}")
            self.refusals[key] = _code(error)
            if not isinstance(error, StartRefused | TimeoutError):
                _log.error("the start of %s", key, exc_info=error)
            raise Refused(Reason.HUB_REFUSED, why=str(error), retryable=False)

    async def stop(self, key: SessionKey) -> None:
        """``DELETE …/server``; a start under way is cancelled first.

        It is given a second to end, in which its server counts as one that runs.
        """
        pending = self.pending.get(key)
        if pending == "stop":
            return
        if pending:
            if (task := self._starts.get(key)) is not None:
                task.cancel()
            await asyncio.sleep(CANCEL_SECONDS)
        self._refuse_pending(key)
        if self._state(key) is not HubState.RUNNING:
            return
        self.pending[key] = "stop"
        task = spawn(self.program, self._stopping(key))
        await asyncio.wait({task}, timeout=SLOW_SECONDS)

    def _refuse_pending(self, key: SessionKey) -> None:
        if key in self.pending:
            raise Refused(
                Reason.OPERATION_IN_FLIGHT, operation="start or stop", retryable=True
            )

    async def _stopping(self, key: SessionKey) -> None:
        try:
            await self._user_stop(key)
        finally:
            self.pending.pop(key, None)

    async def delete(self, key: SessionKey) -> bool:
        """Delete a server (or its user) for ever; only one that does not run."""
        if self._state(key) is not HubState.STOPPED:
            return False
        spawner = self._spawner(key)
        await spawner.delete_forever()
        self._commit()
        self.database.servers.pop(key, None)
        self.spawners.pop(key, None)
        return True

    # --- ``User.spawn`` and ``User.stop``
    async def _spawn(self, key: SessionKey) -> None:
        spawner = self._spawner(key)
        row = self.database.servers.setdefault(key, ServerRow())
        row.running = True
        minted = self._new_token(key.user)
        spawner.clear_state()
        spawner.api_token = minted
        try:
            try:
                await asyncio.wait_for(spawner.start(), START_TIMEOUT)
                self._settle_token(key, spawner, minted)
            except Exception:
                with suppress(Exception):
                    await self._user_stop(key)
                raise
            spawner.start_polling()
            self.save_state(spawner)
            if not await self._wait_up(key, spawner):
                raise TimeoutError(f"{key} never showed up")
            spawner.add_poll_callback(self._poll)
        finally:
            self._starts.pop(key, None)
            self.pending.pop(key, None)

    def _settle_token(
        self, key: SessionKey, spawner: SimulatedSpawner, minted: str
    ) -> None:
        if spawner.api_token == minted:
            return
        self._commit()
        for number, (value, _) in list(self.database.tokens.items()):
            if value == minted:
                del self.database.tokens[number]
        known = [value for value, _ in self.database.tokens.values()]
        if spawner.api_token not in known:
            self._add_token(spawner.api_token, key.user)

    async def _wait_up(self, key: SessionKey, spawner: SimulatedSpawner) -> bool:
        """Whether its server answers in time; one that does not is stopped."""
        until = asyncio.get_running_loop().time() + HTTP_TIMEOUT
        while asyncio.get_running_loop().time() < until:
            place = spawner.place
            if place and place.tree and SERVER not in place.tree.stopped:
                return True
            await asyncio.sleep(0.5)
        self.told(f"the Hub gets no answer of {key} and stops it")
        with suppress(Exception):
            await self._user_stop(key)
        return False

    async def _user_stop(self, key: SessionKey) -> None:
        spawner = self._spawner(key)
        spawner._check_pending = False
        spawner.polled = spawner.watched = False
        if key in self.pending:
            self.pending[key] = "stop"
        try:
            token = spawner.api_token
            if await spawner.poll() is None:
                await spawner.stop()
            if not spawner.will_resume:
                for number, (value, _) in list(self.database.tokens.items()):
                    if value == token:
                        del self.database.tokens[number]
        finally:
            if self.program.alive:
                self._commit()
                row = self.database.servers.setdefault(key, ServerRow())
                row.running = False
                spawner.clear_state()
                self.save_state(spawner)
                self.spawners.pop(key, None)

    # --- its database
    def _spawner(self, key: SessionKey) -> SimulatedSpawner:
        found = self.spawners.get(key)
        if found is None:
            found = self.spawners[key] = SimulatedSpawner(self, key)
            row = self.database.servers.get(key)
            found.load_state(copy.deepcopy(row.state) if row else {})
        return found

    def save_state(self, spawner: SimulatedSpawner) -> None:
        self._commit()
        row = self.database.servers.setdefault(spawner.key, ServerRow())
        row.state = copy.deepcopy(spawner.get_state())
        self.program.effect()

    def _new_token(self, user: str) -> str:
        token = f"token-{self.new_name()}"
        self._commit()
        self._add_token(token, user)
        return token

    def _add_token(self, token: str, user: str) -> None:
        self.database.numbers += 1
        self.database.tokens[self.database.numbers] = (token, user)

    def _commit(self) -> None:
        self.program.effect()

    def new_port(self) -> int:
        self._ports += 1
        return self._ports


def _code(error: BaseException) -> str:
    """The reason of a start that was refused, as its page has it."""
    page = getattr(error, "jupyterhub_html_message", "")
    found = re.search('data-code="([a-z_]+)"', page)
    return found[1] if found else type(error).__name__

"""A whole run: users take turns with the animals until there were enough cycles."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from demo.admin import Admin
from demo.user import User
from soak import leaks
from soak.chain import Chain, Late, Lost, NotSaved, NotStarted
from soak.killer import Killer, Plan
from soak.ledger import Failure, Ledger

if TYPE_CHECKING:
    from pathlib import Path

    from demo.stack import Stack
    from soak.zoo import Animal

#: Seconds after which an administrator logs in again (their token ends after an hour).
_ADMIN_SECONDS = 1800.0
_LOOK_EVERY = 5.0
_KINDS = {Lost: "lost", Late: "late", NotSaved: "not saved"}
STACK = {
    "idle_after": 0,  # suspended on request only
    "sample_interval": 1,
    "service_check": 1,
    "init_spawners_timeout": 1,
    "options": {"orphan_grace": 5, "grace": 15, "set_aside_days": 15 / 86400},
}


@dataclass(frozen=True)
class Options:
    """What is asked of a run."""

    folder: Path
    animals: tuple[Animal, ...]
    cycles: int
    seconds: float
    seed: int
    users: int
    kills: float
    patience: float = 1.0  #: how many times longer all may take, on a busy machine
    chain: int = 0  #: cycles of one session; 0: what its animal says
    again: float = 0.0  #: how often one comes back a second time, for each cycle
    saves: float = 0.0  #: how often one comes back from a save point, for each cycle


@dataclass
class Soak:
    """One run on one stack; ``ledger`` tells of it at any time."""

    options: Options
    stack: Stack
    ledger: Ledger
    say: bool = True
    _admin: Admin | None = None
    _admin_since: float = 0.0
    _admin_lock: threading.Lock = field(default_factory=threading.Lock)
    _names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _turns: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.killer = Killer(self.stack, self.ledger.kills)
        self.growth = leaks.Growth(self.stack)
        self._until = time.monotonic() + self.options.seconds

    def run(self) -> None:
        """Until there were enough cycles, or the time is over; then look for leaks."""
        self.admin()
        self._warm_up()
        before = leaks.count(self.stack)
        threads = [
            threading.Thread(target=self._user, args=(number,), daemon=True)
            for number in range(self.options.users)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self.growth.look(self.ledger.total)
            self._ended.wait(_LOOK_EVERY)
            for thread in threads:
                thread.join(0 if not self._ended.is_set() else _LOOK_EVERY)
        leaks.wait_until_collected(self.stack)
        self.ledger.leaks = {
            "before": before,
            "after": leaks.count(self.stack),
            "growth": self.growth.longest(),
        }

    def stop(self) -> None:
        """Let every user end the cycle in hand, and no further one begin."""
        self._ended.set()

    def admin(self) -> Admin:
        """Somebody who may suspend everybody."""
        with self._admin_lock:
            if (
                self._admin is None
                or time.monotonic() - self._admin_since > _ADMIN_SECONDS
            ):
                self._admin = Admin(self.stack)
                self._admin_since = time.monotonic()
            return self._admin

    def _warm_up(self) -> None:
        """One cycle of one session, so that what starts with the first is no leak."""
        chance = random.Random(self.options.seed)
        self._chain(self.options.animals[0], chance, cycles=1, kills=0.0)
        leaks.wait_until_collected(self.stack)

    # --- one user -------------------------------------------------------------------

    def _user(self, number: int) -> None:
        """Take one animal after the other; a mistake of the soak ends the run."""
        chance = random.Random(f"{self.options.seed}/{number}")
        try:
            while self._goes_on():
                animal = self._draw(chance)
                cycles = self.options.chain or animal.cycles
                self._chain(animal, chance, cycles, self.options.kills)
        except Exception:  # noqa: BLE001 - it is told as a failure
            self._fail(None, 0, "soak", traceback.format_exc(), None)
            self._ended.set()

    def _draw(self, chance: random.Random) -> Animal:
        """Every animal once, divided among the users; then by their shares."""
        turn, animals = next(self._turns), self.options.animals
        if turn <= len(animals):
            return animals[turn - 1]
        return chance.choices(animals, [animal.share for animal in animals])[0]

    def _goes_on(self) -> bool:
        if self.killer.broken:
            self._fail(None, 0, "broken", self.killer.broken, None)
            self._ended.set()
        if self.ledger.total >= self.options.cycles:
            self._ended.set()
        return not self._ended.is_set() and time.monotonic() < self._until

    def _chain(
        self, animal: Animal, chance: random.Random, cycles: int, kills: float
    ) -> None:
        """One session, from its first start to its stop."""
        chain = self.new_chain(animal, chance)
        try:
            chain.begin()
            for number in range(1, cycles + 1):
                plan = Plan.draw(chance, kills)
                if not self._goes_on() or not self.cycle(chain, number, plan):
                    break
        except NotStarted as error:
            self._fail(chain, 0, "not started", str(error), None)
        finally:
            chain.end()

    def new_chain(self, animal: Animal, chance: random.Random) -> Chain:
        """A user of a new name, who has not logged in yet."""
        name = f"soak{self.options.seed}-{next(self._names)}"
        user = User(self.stack.url, name, self.stack.password)
        self.ledger.begin(animal.name)
        return Chain(
            self.admin,
            user,
            animal,
            self.killer,
            chance,
            self.stack.folder,
            self.options.patience,
            again=self.options.again,
            saves=self.options.saves,
        )

    def cycle(self, chain: Chain, number: int, plan: Plan | None) -> bool:
        """One suspend and resume, put down in the ledger; whether all is well."""
        began = time.monotonic()
        try:
            saved = chain.cycle(plan)
        except (Lost, Late, NotSaved) as error:
            self._fail(chain, number, _KINDS[type(error)], str(error), plan)
            return False
        seconds = time.monotonic() - began
        self._tell(chain, number, plan, seconds)
        self.ledger.count(chain.animal.name, saved=saved, seconds=seconds)
        return True

    def _tell(
        self, chain: Chain, cycle: int, plan: Plan | None, seconds: float
    ) -> None:
        if self.say:
            kill = f"  killed: {plan}" if plan else ""
            print(
                f"{time.strftime('%H:%M:%S')} {self.ledger.total:5d}"
                f"  {chain.animal.name:<16} {chain.name:<12} {cycle:3d}"
                f"  {seconds:5.1f} s{kill}",
                flush=True,
            )

    def _fail(
        self, chain: Chain | None, cycle: int, kind: str, why: str, plan: Plan | None
    ) -> None:
        animal = chain.animal.name if chain else ""
        name = chain.name if chain else ""
        logs = self._keep_logs(name or kind)
        self.ledger.fail(
            Failure(animal, name, cycle, kind, why, str(plan or ""), str(logs))
        )
        print(f"FAILED: {animal} {name} cycle {cycle}, {kind}: {why}\n  {logs}")

    def _keep_logs(self, name: str) -> Path:
        """Copy what the programs have said so far."""
        kept = self.stack.folder.with_name(f"{self.stack.folder.name}-failures")
        into = kept / f"{time.strftime('%H%M%S')}-{name}"
        into.mkdir(parents=True, exist_ok=True)
        for part in ("agent.log", "hub.log", "events.jsonl"):
            if (self.stack.folder / part).exists():
                shutil.copy(self.stack.folder / part, into)
        return into

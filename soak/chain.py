"""One session that is suspended and resumed again and again, and compared each time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from websockets.exceptions import WebSocketException

from demo.user import Kernel, User, UserError
from soak.terminal import Terminal

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from demo.admin import Admin
    from soak.killer import Killer, Plan
    from soak.zoo import Animal

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
FILE = "notes.txt"
#: Seconds for everything that a killed part may delay, on a machine with nothing else.
LIMIT = 90.0
#: What a user sees while parts are away, or cut.
_AWAY = (UserError, OSError, WebSocketException, json.JSONDecodeError)


class Lost(Exception):
    """A session did not come back as it was; the text says what was seen."""


class Late(Exception):
    """A session was not back in time; nothing says that it is lost."""


class NotSaved(Exception):
    """A suspend was rolled back, and nobody had killed anything."""


class NotStarted(Exception):
    """A server did not start, or its kernels did not: nothing was held yet."""


@dataclass
class Taken:
    """Seconds that the halves of a cycle took, to draw moments in them."""

    suspend: float = 1.0
    resume: float = 1.0


@dataclass
class Chain:
    """A user with one animal.

    Args:
        admin: makes an administrator; asked anew, since their login ends.
        folder: of the stack.
        patience: how many times longer all may take, on a busy machine.
        page: that is opened to come back.
        again: how often it comes back a second time, from the same checkpoint.
        saves: how often it has a save point, and comes back from it.
    """

    admin: Callable[[], Admin]
    user: User
    animal: Animal
    killer: Killer
    chance: random.Random
    folder: Path
    patience: float = 1.0
    page: str = f"files/{FILE}"
    again: float = 0.0
    saves: float = 0.0
    kernels: list[Kernel] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    taken: Taken = field(default_factory=Taken)
    terminal: Terminal | None = None
    generation: int = 0

    @property
    def name(self) -> str:
        """Of the user."""
        return self.user.name

    @property
    def home(self) -> Path:
        """Theirs."""
        return self.folder / "homes" / self.name

    # --- its life -------------------------------------------------------------------

    def begin(self) -> None:
        """Log in, start the server, and let the animal live in it.

        Raises:
            NotStarted: something of it does not.
        """
        try:
            self._begin()
        except (Late, Lost) as error:
            raise NotStarted(str(error)) from error

    def _begin(self) -> None:
        home = self.home
        home.mkdir(parents=True, exist_ok=True)
        (home / FILE).write_text("what a browser opens")
        self._patiently(self.user.login)
        self._patiently(self._started)
        server = self.user.server()
        for _ in range(self.animal.kernels):
            kernel = self._patiently(server.start_kernel)
            self.kernels.append(kernel)
            self.told.append(self._patiently(lambda kernel=kernel: self._bring(kernel)))
        if self.animal.terminal:
            self.terminal = self._patiently(lambda: Terminal.make(server, home))

    def _started(self) -> None:
        made = self.user.hub("POST", f"users/{self.name}/server")
        if made.status_code not in {201, 202} and "already" not in made.text:
            raise UserError(f"start: {made.status_code} {made.text}")
        self._visit()

    def _bring(self, kernel: Kernel) -> dict[str, Any]:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        code += f"from soak.zoo import keeper\nkeeper.begin({self.animal.home!r})"
        return self._ask(kernel, code, seconds=120)

    def cycle(self, plan: Plan | None) -> bool:
        """Suspend it, bring it back, compare it, and let it change.

        Returns:
            Whether it was suspended; False: a kill had that rolled back, and it ran on.

        Raises:
            Lost: it is not what it was.
            Late: it was not back in time.
            NotSaved: it could not be suspended, and no kill explains it.
        """
        began = time.monotonic()
        if self.saves and self.chance.random() < self.saves:
            self._save_point()
        with self.killer.during("suspend", plan, self.taken.suspend):
            saved = self._suspend(began)
        suspended = time.monotonic()
        with self.killer.during("rest", plan, 0.5):
            pass
        resuming = time.monotonic()
        with self.killer.during("resume", plan, self.taken.resume):
            self._resume()
        resumed = time.monotonic()
        self.compare()
        self._check_once()
        # A suspend that was rolled back has saved nothing of what it has done since.
        again = saved and self.chance.random() < self.again
        if again and self._die():
            self._resume()
            self.compare()
            self._check_once()
        if not self.killer.since(began):
            self.taken = Taken(suspended - began, resumed - resuming)
        for number, kernel in enumerate(self.kernels):
            self.told[number] = self._patiently(
                lambda kernel=kernel: self._ask(kernel, "keeper.tell()")
            )
            self.told[number] = self._change(kernel, self.told[number])
        return saved

    def end(self) -> None:
        """Stop the server for good, and delete what it is suspended in.

        A stop soon after one of the service's that a kill has cut off is taken for that
        one: the session is saved.
        """
        self.close()
        for work in (self._stop, self._delete):
            with contextlib.suppress(*_AWAY, Late):
                self._patiently(work)

    def _stop(self) -> None:
        answer = self.user.hub("DELETE", f"users/{self.name}/server", json={})
        # A proxy that has just been started has no route to the Hub: 404.
        if answer.status_code not in {202, 204}:
            raise UserError(f"stop: {answer.status_code}")

    def _delete(self) -> None:
        phase = self.admin().session(self.name)["phase"]
        if phase == "suspended":
            self.admin().call(
                "POST", f"sessions/{self.name}/-/delete", json={"everything": True}
            )
        elif phase != "stopped":
            raise UserError(f"after its stop it is {phase}")

    def close(self) -> None:
        """Close what this user has open."""
        for kernel in self.kernels:
            kernel.close()

    # --- out and back ---------------------------------------------------------------

    def _suspend(self, began: float) -> bool:
        """Order it until it is suspended, or a kill has had it rolled back."""
        until, seen = time.monotonic() + self._limit, ""
        while time.monotonic() < until:
            try:
                # The answer to an order may be lost with who was to give it.
                if self.admin().session(self.name)["phase"] != "suspended":
                    self.admin().call("POST", f"sessions/{self.name}/-/suspend")
                view = self._after_the_order()
            except _AWAY as error:
                seen = str(error)
                time.sleep(0.2)
                continue
            if view["phase"] == "suspended":
                self._newer(view)
                return True
            if view["phase"] == "stopped":
                raise Lost("it was stopped instead of suspended")
            seen = f"{view['phase']}: {view.get('failure')}"
            if self.killer.since(began):
                return False
            if view.get("failure"):
                raise NotSaved(seen)
        raise NotSaved(f"not suspended after {self._limit:.0f} s: {seen}")

    def _after_the_order(self) -> dict[str, Any]:
        """The session, once it is suspended or nobody wants that any more."""
        until = time.monotonic() + self._limit
        view: dict[str, Any] = {}
        while time.monotonic() < until:
            view = self.admin().session(self.name)
            wanted = view.get("facts", {}).get("intent") == "suspend"
            if view["phase"] in {"suspended", "stopped"}:
                return view
            if view["phase"] == "running" and not wanted:
                return view
            time.sleep(0.05)
        return view

    def _newer(self, view: dict[str, Any]) -> None:
        generation = (view.get("last_suspend") or {}).get("generation", 0)
        if generation <= self.generation:
            raise Lost(f"suspended as generation {generation} after {self.generation}")
        self.generation = generation

    def _resume(self) -> None:
        """Come back as a person does, or let an administrator order it first."""
        if self.chance.random() < 0.3:
            with contextlib.suppress(*_AWAY):
                self.admin().resume(self.name)
        self._patiently(self._visit_or_try_again)

    def _die(self) -> bool:
        """Have it end at once, as by a lack of memory, while it can still come back.

        Returns:
            Whether it has; False: what it came from was deleted before.

        Raises:
            Lost: it counts as stopped.
        """
        if not self._patiently(lambda: self.admin().session(self.name))["checkpoint"]:
            return False
        for tree in self._patiently(self.killer.stack.trees):
            if tree["key"]["user"] == self.name and tree["state"] == "running":
                os.kill(tree["init_pid"], signal.SIGKILL)
        until = time.monotonic() + self._limit
        while time.monotonic() < until:
            view = self._patiently(lambda: self.admin().session(self.name))
            if view["phase"] == "suspended":
                return True
            if view["phase"] == "stopped":
                raise Lost("ended while it was saved, and called stopped")
            time.sleep(0.1)
        raise Late(f"ended while it was saved, and {view['phase']} still")

    def _save_point(self) -> None:
        """Save it while it goes on, end it, and have that come back.

        Raises:
            Lost: it is not what it was, before its end or after it.
            NotSaved: it could not be saved, and no kill explains it.
        """
        began = time.monotonic()
        before = self._patiently(lambda: self.admin().session(self.name))
        until = time.monotonic() + self._limit
        view = before
        while view["checkpoint"] == before["checkpoint"]:
            if self.killer.since(began):
                return
            if time.monotonic() > until:
                raise NotSaved(f"no save point: {view['phase']}, {view['failure']}")
            with contextlib.suppress(*_AWAY):
                self.admin().call("POST", f"sessions/{self.name}/-/save")
            time.sleep(0.3)
            view = self._patiently(lambda: self.admin().session(self.name))
        self.compare()
        if self._die():
            self._patiently(lambda: self.admin().resume(self.name))
            self._patiently(self._visit_or_try_again)
            self.compare()
            self._check_once()

    def _visit_or_try_again(self) -> None:
        try:
            self._visit()
        except _AWAY:
            # What the page offers when a return has failed.
            self.user.hub("POST", f"users/{self.name}/server")
            raise

    def _visit(self) -> None:
        page = f"{self.user.server().prefix}{self.page}"
        self.user.visit(page, seconds=60)

    # --- comparing ------------------------------------------------------------------

    def compare(self) -> None:
        """Ask it what it holds.

        Raises:
            Lost: kernels, processes, values or terminals are not what they were.
        """
        listed = self._patiently(lambda: self.user.server().json("GET", "kernels"))
        here = {kernel["id"] for kernel in listed}
        if here != {kernel.id for kernel in self.kernels}:
            raise Lost(f"kernels {here} instead of {[k.id for k in self.kernels]}")
        for kernel, before in zip(self.kernels, self.told, strict=True):
            now = self._patiently(
                lambda kernel=kernel: self._ask(kernel, "keeper.tell()")
            )
            same = (now["pid"], now["digest"]) == (before["pid"], before["digest"])
            if not same or now["grown"] < before["grown"]:
                raise Lost(f"{now} instead of {before}")
        if self.terminal:
            self._patiently(self.terminal.check)

    def _check_once(self) -> None:
        """One tree of this session runs, and no other.

        Raises:
            Lost: it is none, or two, for longer than anything takes.
        """
        until = time.monotonic() + self._limit
        while (states := self._patiently(self._states)) != ["running"]:
            if time.monotonic() > until:
                raise Lost(f"not one running tree: {states}")
            time.sleep(0.3)

    def _states(self) -> list[str]:
        """What the agent says of this session's trees."""
        trees = self.killer.stack.trees()
        return [tree["state"] for tree in trees if tree["key"]["user"] == self.name]

    def _change(self, kernel: Kernel, before: dict[str, Any]) -> dict[str, Any]:
        """Let the animal change, once, though its answer may be cut off by a kill."""
        with contextlib.suppress(*_AWAY):
            return self._ask(kernel, "keeper.work()")

        def ask() -> dict[str, Any]:
            return self._ask(kernel, "keeper.tell()")

        return {**self._patiently(ask), "pid": before["pid"]}

    def _ask(self, kernel: Kernel, code: str, *, seconds: float = 60) -> dict[str, Any]:
        try:
            with kernel:
                sent = kernel.send(code)
                out = kernel.collect(sent, seconds=seconds * self.patience)
        except TimeoutError as error:
            raise UserError(f"no answer to {code!r} in {seconds} s") from error
        if out.error:
            raise Lost(out.error[-3000:])
        return dict(json.loads(out.text.strip().splitlines()[-1]))

    @property
    def _limit(self) -> float:
        return LIMIT * self.patience

    def _patiently(self, work: Callable[[], T]) -> T:
        """Do something again until it succeeds, as people do."""
        until = time.monotonic() + self._limit
        while True:
            try:
                return work()
            except _AWAY as error:
                if time.monotonic() > until:
                    raise Late(f"{type(error).__name__}: {error}") from error
                time.sleep(0.3)

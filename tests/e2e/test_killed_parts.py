"""Hub, service and agent, killed at every phase: the session lives or is saved.

One session goes through all cases, each time with a new value in its kernel: a session
that was started cold, or brought back from an older checkpoint, does not know it.
"""

import contextlib
import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException

from demo.admin import Admin
from demo.processes import alive
from demo.stack import free_port
from demo.user import Kernel, User, UserError
from tests.e2e.conftest import shared_stack
from tests.support.hub import wait_until
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(400)

#: What goes down together, at which moment. A Hub that is killed takes its service with
#: it in time; all of them leave nobody who could notice anything: a power cut for the
#: programs. ``soak`` kills any of them at any moment.
CASES = {
    "agent-running": (("agent",), "running"),
    "everything-restoring": (("hub", "agent", "service", "proxy"), "restoring"),
}
SECONDS = 60.0


class Somebody:
    """A user with one kernel, whose variable is a new one in each case."""

    def __init__(self, stack: Stack, admin: Admin, number: int) -> None:
        self.stack = stack
        self.admin = admin
        self.user = User.arrived(stack, f"killed{number}")
        self.kernel: Kernel = self.user.server().start_kernel()
        self.value = ""
        self.well = False
        with self.kernel:
            self.kernel.run("import os; ballast = os.urandom(120 << 20)")

    @property
    def name(self) -> str:
        return self.user.name

    def work(self) -> None:
        self.value, self.well = secrets.token_hex(8), False
        with self.kernel:
            self.kernel.run(f"x = {self.value!r}")

    def visit(self) -> None:
        self.user.visit(f"{self.user.server().prefix}lab", seconds=30)

    def comes_back(self) -> None:
        """Open the page; where it says "Try again", do; then all is there, once."""
        end, seen = time.monotonic() + SECONDS, ""
        while not seen and time.monotonic() < end:
            try:
                self.visit()
                with self.kernel:
                    seen = self.kernel.run("print(x)").text.strip()
            except (UserError, OSError, WebSocketException):
                with contextlib.suppress(UserError, OSError):
                    self.user.start_server(seconds=20)
        assert seen == self.value
        assert self.states() == ["running"]  # one, not two
        self.admin.wait(self.name, phase="running")
        self.well = True

    def states(self) -> list[str]:
        """What the agent says of this user's processes; it must answer."""
        trees = self.stack.trees()
        return [t["state"] for t in trees if t["key"]["user"] == self.name]

    def reaches(self, *states: list[str]) -> None:
        end = time.monotonic() + SECONDS
        while (seen := self.states()) not in states:
            assert time.monotonic() < end, f"never {states}, now {seen}"
            time.sleep(0.02)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """One that notices soon what has happened to it."""
    return shared_stack(
        tmp_path_factory,
        idle_after=0,
        service_check=1,
        init_spawners_timeout=1,
        sample_interval=1,
        options={"orphan_grace": 5},
    )


@pytest.fixture(scope="module")
def known() -> list[Somebody]:
    """The one whose session has come through all cases so far, if there is one."""
    return []


@pytest.fixture
def somebody(stack: Stack, admin: Admin, known: list[Somebody]) -> Iterator[Somebody]:
    """A running session; after a case that failed, somebody else's."""
    if not known:
        known.append(Somebody(stack, admin, secrets.randbelow(10**6)))
    somebody = known.pop()
    somebody.work()
    yield somebody
    if somebody.well:
        known.append(somebody)


def in_background(work: Callable[[], object]) -> None:
    """Do something whose answer may never come, because we kill who would answer."""

    def quietly() -> None:
        with contextlib.suppress(OSError, UserError):
            work()

    threading.Thread(target=quietly, daemon=True).start()


def reach(moment: str, admin: Admin, somebody: Somebody) -> None:
    if moment == "running":
        return
    admin.suspend(somebody.name)
    in_background(somebody.visit)
    somebody.reaches(["restoring"], ["running"])


def restart(stack: Stack, parts: tuple[str, ...]) -> None:
    for part in parts:
        stack.kill(part)
    if "agent" in parts:
        stack.start_agent()
    if "hub" in parts:
        stack.start_hub()


@pytest.mark.parametrize(("parts", "moment"), CASES.values(), ids=CASES)
def test_parts_killed_at_any_moment_lose_and_double_no_session(
    stack: Stack,
    admin: Admin,
    somebody: Somebody,
    parts: tuple[str, ...],
    moment: str,
) -> None:
    reach(moment, admin, somebody)
    restart(stack, parts)
    assert admin.settle(somebody.name, rest=1.0) in {"running", "suspended"}
    somebody.comes_back()


def test_hub_that_looks_for_a_session_at_a_wrong_port_ends_nothing(
    stack: Stack, somebody: Somebody
) -> None:
    stack.kill("hub")
    forget_port(stack, somebody.name)
    stack.settings["http_timeout"] = 3
    stack.start_hub()
    del stack.settings["http_timeout"]
    wait_until(lambda: "its programs are kept" in stack.log("hub"), SECONDS)
    somebody.comes_back()


def test_journal_restored_from_before_a_suspend_brings_the_session_back(
    stack: Stack, admin: Admin, somebody: Somebody, tmp_path: Path
) -> None:
    admin.wait(somebody.name, phase="running")
    (journal,) = stack.folder.rglob("journal.sqlite")
    copy = tmp_path / "copy.sqlite"
    with (
        contextlib.closing(sqlite3.connect(journal)) as now,
        contextlib.closing(sqlite3.connect(copy)) as other,
    ):
        now.backup(other)
    admin.suspend(somebody.name)
    generation, service = (
        admin.session(somebody.name)["generation"],
        stack.service_pids(),
    )
    for part in ("hub", "service", "proxy"):
        stack.kill(part)
    wait_until(lambda: not any(map(alive, service)), SECONDS)
    for tail in ("-wal", "-shm"):
        journal.with_name(journal.name + tail).unlink(missing_ok=True)
    journal.write_bytes(copy.read_bytes())
    stack.start_hub()
    somebody.comes_back()
    assert admin.session(somebody.name)["generation"] == generation


def forget_port(stack: Stack, name: str) -> None:
    """Leave in the Hub's database what a start that was cut short leaves."""
    with contextlib.closing(
        sqlite3.connect(stack.folder / "jupyterhub.sqlite")
    ) as database:
        [(row, server, state)] = database.execute(
            "SELECT spawners.id, spawners.server_id, spawners.state FROM spawners"
            " JOIN users ON users.id = user_id WHERE users.name = ?",
            (name,),
        )
        pointer = json.loads(state)
        pointer["gpu_reclaim"]["port"] = 0
        database.execute(
            "UPDATE spawners SET state = ? WHERE id = ?", (json.dumps(pointer), row)
        )
        database.execute(
            "UPDATE servers SET port = ? WHERE id = ?", (free_port(), server)
        )
        database.commit()

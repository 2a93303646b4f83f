"""Hub, service and agent, killed at every phase: the session lives or is saved.

One session goes through all cases, each time with a new value in its kernel: a session
that was started cold, or brought back from an older checkpoint, does not know it.
"""

import contextlib
import json
import os
import secrets
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException

from demo.admin import Admin
from demo.stack import free_port
from demo.user import Kernel, User, UserError
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(400)

#: What goes down together. A Hub that is killed takes its service with it in time;
#: "everything" leaves nobody who could notice anything: a power cut for the programs.
PARTS = {
    "hub": ("hub",),
    "service": ("service",),
    "agent": ("agent",),
    "agent and service": ("agent", "service"),
    "everything": ("hub", "agent", "service", "proxy"),
}
MOMENTS = ("running", "capturing", "captured", "suspended", "restoring", "resumed")
#: Several parts at the moments at which they have something in hand together.
TOGETHER = ("capturing", "captured", "restoring")
#: What another case covers as well; it takes four minutes more.
COVERED = {
    ("hub", "running"),  # a wrong port
    ("service", "running"),  # the Hub's tests of the service, and of the admin page
    ("service", "suspended"),  # a Hub takes its service along
    ("service", "resumed"),  # likewise
    ("agent", "suspended"),  # everything, which ends in a suspended session as well
    ("hub", "capturing"),  # everything; tests/hub/test_traps.py, T6
    ("hub", "restoring"),  # everything
    ("hub", "suspended"),  # the Hub's tests: restarted while suspended
    ("hub", "resumed"),  # likewise, and killed during a resume
    ("hub", "captured"),  # tests/hub/test_traps.py, T6
    ("service", "captured"),  # everything
    ("service", "restoring"),  # likewise
    ("service", "capturing"),  # captured
    ("agent", "capturing"),  # killed again in its own recovery
    ("agent", "restoring"),  # everything; tests/node/test_crash.py
    ("agent", "resumed"),  # everything
    ("agent", "captured"),  # waits for the Hub
    *[("agent and service", moment) for moment in TOGETHER],
    *[("everything", moment) for moment in ("capturing", "captured")],
}
SECONDS = 60.0


class Somebody:
    """A user with one kernel, whose variable is a new one in each case."""

    def __init__(self, stack: Stack, admin: Admin, number: int) -> None:
        self.stack = stack
        self.admin = admin
        self.user = User(stack.url, f"killed{number}", stack.password)
        self.user.login()
        self.user.start_server()
        self.kernel: Kernel = self.user.server().start_kernel()
        self.value = ""
        self.well = False
        with self.kernel:
            self.kernel.run("import os; ballast = os.urandom(120 << 20)")

    @property
    def name(self) -> str:
        return self.user.name

    def work(self) -> None:
        """Put something into the kernel that only this session knows."""
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
        mine = (t["state"] for t in trees if t["key"]["user"] == self.name)
        return [state for state in mine if state != "gone"]

    def server_pid(self) -> int:
        """The user's Jupyter server, in this machine's own numbers."""
        tree = next(t for t in self.stack.trees() if t["key"]["user"] == self.name)
        pid = tree["init_pid"]
        for _ in ("root", "server"):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            pid = min(map(int, children))
        return pid

    def reaches(self, *states: list[str]) -> None:
        """Wait until the processes are so, looking as often as can be."""
        end = time.monotonic() + SECONDS
        while (seen := self.states()) not in states:
            assert time.monotonic() < end, f"never {states}, now {seen}"
            time.sleep(0.02)


@pytest.fixture(scope="module")
def stack(shaken: Stack) -> Stack:
    return shaken


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
    if moment in {"capturing", "captured"}:
        in_background(lambda: admin.call("POST", f"sessions/{somebody.name}/-/suspend"))
        # A phase may be too short to be seen; the one after it will do.
        after = [["captured"], []]
        somebody.reaches(*([["capturing"]] if moment == "capturing" else []), *after)
        return
    admin.suspend(somebody.name)
    if moment == "suspended":
        return
    in_background(somebody.visit)
    if moment == "restoring":
        somebody.reaches(["restoring"], ["running"])
    else:
        somebody.reaches(["running"])


def until(true: Callable[[], bool], *, seconds: float = SECONDS) -> None:
    """Wait for something that nobody tells."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def restart(stack: Stack, parts: tuple[str, ...]) -> None:
    """Kill them, then start what nobody else starts again."""
    for part in parts:
        stack.kill(part)
    if "agent" in parts:
        stack.start_agent()
    if "hub" in parts:
        stack.start_hub()


def cases() -> Iterator[object]:
    """Each part at each moment, and several at once where that may matter."""
    for parts, members in PARTS.items():
        for moment in MOMENTS if len(members) == 1 else TOGETHER:
            marks = pytest.mark.long if (parts, moment) in COVERED else ()
            yield pytest.param(parts, moment, id=f"{parts}-{moment}", marks=marks)


@pytest.mark.parametrize(("parts", "moment"), list(cases()))
def test_parts_killed_at_any_moment_lose_and_double_no_session(
    stack: Stack, admin: Admin, somebody: Somebody, parts: str, moment: str
) -> None:
    reach(moment, admin, somebody)
    restart(stack, PARTS[parts])
    assert admin.settle(somebody.name, rest=1.0) in {"running", "suspended"}
    somebody.comes_back()


@pytest.mark.long
def test_agent_killed_while_a_saved_session_waits_for_the_hub_keeps_it_saved(
    stack: Stack, admin: Admin, somebody: Somebody
) -> None:
    hub = stack.parts["hub"]
    in_background(lambda: admin.call("POST", f"sessions/{somebody.name}/-/suspend"))
    somebody.reaches(["capturing"])
    os.kill(hub.pid, signal.SIGSTOP)  # so that the Hub cannot take the stop
    try:
        somebody.reaches(["captured"])
        restart(stack, PARTS["agent"])
        assert somebody.states() == ["captured"]
    finally:
        os.kill(hub.pid, signal.SIGCONT)
    admin.wait(somebody.name, phase="suspended")
    somebody.comes_back()


def test_agent_killed_again_in_its_own_recovery_loses_no_session(
    stack: Stack, admin: Admin, somebody: Somebody
) -> None:
    reach("capturing", admin, somebody)
    stack.kill("agent")
    for wait in (0.3, 0.5, 0.7, 0.9):
        stack.begin_agent()
        time.sleep(wait)
        stack.kill("agent")
    stack.start_agent()
    admin.settle(somebody.name, rest=1.0)
    somebody.comes_back()


@pytest.mark.long
def test_hub_killed_twice_in_one_return_gets_the_session_back(
    stack: Stack, admin: Admin, somebody: Somebody
) -> None:
    reach("restoring", admin, somebody)
    restart(stack, PARTS["hub"])
    admin.wait(somebody.name, phase="running")  # nobody has come for it yet
    server = somebody.server_pid()
    os.kill(server, signal.SIGSTOP)  # so that the Hub waits for its answer
    try:
        in_background(somebody.visit)
        until(lambda: "start adopt" in stack.log("hub"))
        time.sleep(1)
        stack.kill("hub")
    finally:
        os.kill(server, signal.SIGCONT)
    stack.start_hub()
    somebody.comes_back()


def test_hub_that_looks_for_a_session_at_a_wrong_port_ends_nothing(
    stack: Stack, somebody: Somebody
) -> None:
    stack.kill("hub")
    forget_port(stack, somebody.name)
    stack.settings["http_timeout"] = 3
    stack.start_hub()
    del stack.settings["http_timeout"]
    until(lambda: "its programs are kept" in stack.log("hub"))
    somebody.comes_back()


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

"""Journal restored from a backup or lost, states put aside: on the whole stack."""

import contextlib
import os
import secrets
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.admin import Admin
from demo.processes import alive
from demo.stack import BIN
from demo.user import Kernel, User
from tests.support.agent import wait_for
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def stack(shaken: Stack) -> Stack:
    """One that compares often, and soon reports what is odd."""
    return shaken


class Somebody:
    """A user whose kernel holds a value that only this session knows."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.user.start_server()
        self.kernel: Kernel = self.user.server().start_kernel()
        self.value = ""
        self.work()

    @property
    def name(self) -> str:
        return self.user.name

    def work(self) -> str:
        self.value = secrets.token_hex(8)
        with self.kernel:
            self.kernel.run(f"x = {self.value!r}")
        return self.value

    def visit(self) -> str:
        """Open the page; what the kernel holds."""
        self.user.visit(f"{self.user.server().prefix}lab")
        with self.kernel:
            # Back in an older state, IPython may add that its history moved on.
            return self.kernel.run("print(x)").text.splitlines()[0]


@pytest.fixture
def user(stack: Stack) -> Iterator[User]:
    user = User(stack.url, f"old{secrets.randbelow(10**6)}", stack.password)
    user.login()
    yield user
    with contextlib.suppress(OSError):
        user.hub("DELETE", f"users/{user.name}/server", json={})


@pytest.fixture
def somebody(user: User) -> Somebody:
    return Somebody(user)


def journal_of(stack: Stack) -> Path:
    (found,) = stack.folder.rglob("journal.sqlite")
    return found


def hub_of(stack: Stack) -> Path:
    return stack.folder / "jupyterhub.sqlite"


def back_up(database: Path, copy: Path) -> Path:
    with (
        contextlib.closing(sqlite3.connect(database)) as now,
        contextlib.closing(sqlite3.connect(copy)) as other,
    ):
        now.backup(other)
    return copy


def restart_with(stack: Stack, copy: Path | None, hubs: Path | None = None) -> None:
    """Hub and service end; the journal is that copy, or none; they start again."""
    journal, service = journal_of(stack), stack.service_pids()
    assert service
    stack.kill("hub")
    stack.kill("service")
    stack.kill("proxy")
    wait_for(lambda: not any(map(alive, service)))
    put_back(journal, copy)
    if hubs is not None:
        put_back(hub_of(stack), hubs)
    stack.start_hub()


def put_back(database: Path, copy: Path | None) -> None:
    for tail in ("", "-wal", "-shm"):
        database.with_name(database.name + tail).unlink(missing_ok=True)
    if copy is not None:
        database.write_bytes(copy.read_bytes())


def forget_pointer(stack: Stack, name: str) -> None:
    """What a Hub's database from before the suspend says: nothing is suspended."""
    with contextlib.closing(sqlite3.connect(hub_of(stack))) as database:
        database.execute(
            "UPDATE spawners SET state = '{}' WHERE user_id ="
            " (SELECT id FROM users WHERE name = ?)",
            (name,),
        )
        database.commit()


def command(stack: Stack, admin: Admin, *line: str) -> str:
    """What an administrator types; its output."""
    done = subprocess.run(
        [BIN / "jupyterhub-gpu-reclaim", *line, f"--url={stack.url}"],
        env={**os.environ, "JUPYTERHUB_API_TOKEN": admin.headers["Authorization"][6:]},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_journal_restored_from_before_the_suspend_brings_the_session_back(
    stack: Stack, admin: Admin, somebody: Somebody, tmp_path: Path
) -> None:
    admin.wait(somebody.name, phase="running")
    copy = back_up(journal_of(stack), tmp_path / "copy.sqlite")
    admin.suspend(somebody.name)
    restart_with(stack, copy)
    assert somebody.visit() == somebody.value
    assert admin.wait(somebody.name, phase="running")["generation"] == 1


@pytest.mark.long
def test_both_databases_of_before_a_session_it_is_listed_and_joined(
    stack: Stack, admin: Admin, user: User, tmp_path: Path
) -> None:
    journal = back_up(journal_of(stack), tmp_path / "journal.sqlite")
    hub = back_up(hub_of(stack), tmp_path / "hub.sqlite")
    somebody, name = Somebody(user), user.name
    mine = incarnations_of(stack, name)
    restart_with(stack, journal, hub)
    admin.wait(name, phase="running")  # as its agent sees it
    # Its init says whose it is, and the Hub's account is the same.
    user.start_server()
    assert somebody.visit() == somebody.value
    assert incarnations_of(stack, name) == mine
    assert admin.wait(name, phase="running")["failure"] is None


def incarnations_of(stack: Stack, name: str) -> list[str]:
    trees = stack.trees()
    return [tree["incarnation"] for tree in trees if tree["key"]["user"] == name]


@pytest.mark.long
def test_journal_lost_and_the_hubs_pointer_too_asks_before_it_comes_back(
    stack: Stack, admin: Admin, somebody: Somebody
) -> None:
    admin.suspend(somebody.name)
    restart_with(stack, None)
    assert somebody.visit() == somebody.value  # store and Hub alone know enough
    admin.wait(somebody.name, phase="running")
    admin.suspend(somebody.name)
    stack.kill("hub")
    forget_pointer(stack, somebody.name)
    stack.start_hub()
    restart_with(stack, None)
    admin.wait(somebody.name, phase="suspended")
    # The Hub knows of nothing that a visit would bring back; who presses "Start" is
    # asked, and nothing is started cold.
    asked = somebody.user.hub("POST", f"users/{somebody.name}/server")
    assert "no record of" in asked.text
    command(stack, admin, "resume", somebody.name, "--yes")
    admin.wait(somebody.name, phase="running")
    assert somebody.visit() == somebody.value

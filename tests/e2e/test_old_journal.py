"""Journal restored from a backup or lost, states put aside: on the whole stack."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from demo.admin import Admin
from demo.stack import BIN
from demo.user import User
from tests.support import light_server
from tests.support.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from demo.user import Kernel

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that compares often."""
    with Stack(
        tmp_path_factory.mktemp("stack"),
        idle_after=0,
        server=light_server.COMMAND,
        http_timeout=120,
        service_options={"ReclaimService.tick_interval": 1},
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Admin:
    return Admin(stack)


class Somebody:
    """A user whose kernel holds a value that only this session knows."""

    def __init__(self, stack: Stack) -> None:
        self.user = User(stack.url, f"old{secrets.randbelow(10**6)}", stack.password)
        self.user.login()
        self.user.start_server()
        self.kernel: Kernel = self.user.server().start_kernel()
        self.value = ""
        self.work()

    @property
    def name(self) -> str:
        return self.user.name

    def work(self) -> str:
        """Set another value."""
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
def somebody(stack: Stack) -> Iterator[Somebody]:
    somebody = Somebody(stack)
    yield somebody
    with contextlib.suppress(OSError):
        somebody.user.hub("DELETE", f"users/{somebody.name}/server", json={})


def journal_of(stack: Stack) -> Path:
    """The service's database."""
    (found,) = stack.folder.rglob("journal.sqlite")
    return found


def back_up(stack: Stack, copy: Path) -> Path:
    with (
        contextlib.closing(sqlite3.connect(journal_of(stack))) as now,
        contextlib.closing(sqlite3.connect(copy)) as other,
    ):
        now.backup(other)
    return copy


def restart_with(stack: Stack, copy: Path | None) -> None:
    """Hub and service end; the journal is that copy, or none; they start again."""
    journal = journal_of(stack)
    stack.kill("hub")
    stack.kill("service")
    stack.kill("proxy")
    end = time.monotonic() + 20
    while stack.service_pids() and time.monotonic() < end:
        time.sleep(0.1)
    for tail in ("", "-wal", "-shm"):
        journal.with_name(journal.name + tail).unlink(missing_ok=True)
    if copy is not None:
        journal.write_bytes(copy.read_bytes())
    stack.start_hub()


def forget_pointer(stack: Stack, name: str) -> None:
    """What a Hub's database from before the suspend says: nothing is suspended."""
    with contextlib.closing(
        sqlite3.connect(stack.folder / "jupyterhub.sqlite")
    ) as database:
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
    copy = back_up(stack, tmp_path / "copy.sqlite")
    admin.suspend(somebody.name)
    restart_with(stack, copy)
    assert somebody.visit() == somebody.value
    assert admin.wait(somebody.name, phase="running")["generation"] == 1


def test_journal_restored_from_an_older_generation_brings_the_newer_one_back(
    stack: Stack, admin: Admin, somebody: Somebody, tmp_path: Path
) -> None:
    admin.suspend(somebody.name)
    copy = back_up(stack, tmp_path / "copy.sqlite")
    assert somebody.visit() == somebody.value
    admin.wait(somebody.name, phase="running")
    newer = somebody.work()
    admin.suspend(somebody.name)
    restart_with(stack, copy)
    assert somebody.visit() == newer


def test_journal_lost_and_the_hubs_pointer_too_comes_back_by_one_command(
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
    assert "asks" in command(stack, admin, "journal", "check")
    assert "next visit" in command(stack, admin, "journal", "rebuild")
    somebody.user.start_server()
    assert somebody.visit() == somebody.value


def test_state_put_aside_comes_back_after_a_cold_start_and_a_stop(
    stack: Stack, admin: Admin, somebody: Somebody
) -> None:
    name = somebody.name
    saved = admin.suspend(name)["checkpoint"]
    admin.call("POST", f"sessions/{name}/-/start-fresh")
    somebody.user.start_server()
    assert somebody.user.server().json("GET", "kernels") == []
    somebody.user.hub("DELETE", f"users/{name}/server", json={})
    admin.wait(name, phase="stopped")
    assert saved in command(stack, admin, "saved", name)
    command(stack, admin, "bring-back", name, saved)
    admin.wait(name, phase="running")
    assert somebody.visit() == somebody.value


def test_state_of_before_comes_back_while_the_session_runs_and_both_are_kept(
    stack: Stack, admin: Admin, somebody: Somebody
) -> None:
    name, before = somebody.name, somebody.value
    saved = admin.suspend(name)["checkpoint"]
    assert somebody.visit() == before
    admin.wait(name, phase="running")
    now = somebody.work()
    page = somebody.user.http.get(
        f"{stack.url}/services/gpu-reclaim/sessions/{name}/-", timeout=30
    )
    assert "Other checkpoints" in page.text
    command(stack, admin, "bring-back", name, saved, "--save-running")
    end = time.monotonic() + 60
    while admin.session(name)["generation"] != 2 and time.monotonic() < end:
        time.sleep(0.1)
    admin.wait(name, phase="running")
    assert somebody.visit() == before
    kept = admin.call("GET", f"sessions/{name}/-/saved")
    (other,) = [state["id"] for state in kept if state["keeping"] == "aside"]
    command(stack, admin, "bring-back", name, other, "--save-running")
    end = time.monotonic() + 60
    while admin.session(name)["generation"] != 3 and time.monotonic() < end:
        time.sleep(0.1)
    admin.wait(name, phase="running")
    assert somebody.visit() == now

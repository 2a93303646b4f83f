"""A journal restored from a backup, on the whole stack."""

import contextlib
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.admin import Admin
from demo.processes import alive
from demo.user import User
from tests.support.agent import wait_for
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def stack(shaken: Stack) -> Stack:
    """One that compares often, and soon reports what is odd."""
    return shaken


@pytest.fixture
def user(stack: Stack) -> Iterator[User]:
    user = User(stack.url, f"old{secrets.randbelow(10**6)}", stack.password)
    user.login()
    user.start_server()
    yield user
    with contextlib.suppress(OSError):
        user.hub("DELETE", f"users/{user.name}/server", json={})


def journal_of(stack: Stack) -> Path:
    (found,) = stack.folder.rglob("journal.sqlite")
    return found


def back_up(database: Path, copy: Path) -> Path:
    with (
        contextlib.closing(sqlite3.connect(database)) as now,
        contextlib.closing(sqlite3.connect(copy)) as other,
    ):
        now.backup(other)
    return copy


def restart_with(stack: Stack, copy: Path) -> None:
    """Hub and service end; the journal is that copy; they start again."""
    journal, service = journal_of(stack), stack.service_pids()
    assert service
    stack.kill("hub")
    stack.kill("service")
    stack.kill("proxy")
    wait_for(lambda: not any(map(alive, service)))
    for tail in ("-wal", "-shm"):
        journal.with_name(journal.name + tail).unlink(missing_ok=True)
    journal.write_bytes(copy.read_bytes())
    stack.start_hub()


def test_journal_restored_from_before_the_suspend_brings_the_session_back(
    stack: Stack, admin: Admin, user: User, tmp_path: Path
) -> None:
    kernel, value = user.server().start_kernel(), secrets.token_hex(8)
    with kernel:
        kernel.run(f"x = {value!r}")
    admin.wait(user.name, phase="running")
    copy = back_up(journal_of(stack), tmp_path / "copy.sqlite")
    admin.suspend(user.name)
    restart_with(stack, copy)
    user.visit(f"{user.server().prefix}lab")
    with kernel:
        assert kernel.run("print(x)").text == f"{value}\n"
    assert admin.wait(user.name, phase="running")["generation"] == 1

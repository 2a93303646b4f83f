"""Files that changed while a session was suspended: safe ones pass, others say why."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import requests

    from demo.admin import Admin
    from demo.user import Kernel, User
    from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(240)


def home_of(stack: Stack, user: User) -> Path:
    return stack.folder / "homes" / user.name


def suspended_kernel(admin: Admin, user: User, code: str) -> Kernel:
    kernel = user.server().start_kernel()
    with kernel:
        kernel.run(code)
    admin.suspend(user.name)
    return kernel


def refusal(admin: Admin, user: User) -> dict[str, object]:
    """Try to come back; returns the failure that the service shows."""
    user.http.get(f"{user.base}/hub/spawn/{user.name}", timeout=60)
    until = time.monotonic() + 40
    while time.monotonic() < until:
        view = admin.session(user.name)
        if view["failure"] and view["phase"] == "suspended":
            page_of_refusal(user)  # the Hub has heard of it, too
            return dict(view["failure"])
        time.sleep(0.2)
    raise AssertionError(f"no refusal: {admin.session(user.name)}")


@pytest.mark.long
def test_log_and_database_that_grew_are_no_obstacle(
    stack: Stack, admin: Admin, user: User
) -> None:
    home = home_of(stack, user)
    kernel = suspended_kernel(
        admin,
        user,
        "import sqlite3\n"
        "log = open('run.log', 'a'); log.write('one\\n'); log.flush()\n"
        "db = sqlite3.connect('mine.db')\n"
        "_ = db.execute('create table t (n integer)'); db.commit()",
    )
    with (home / "run.log").open("a") as log:
        log.write("of another server\n" * 1000)
    with sqlite3.connect(home / "mine.db") as db:
        db.executemany("insert into t values (?)", [(n,) for n in range(5000)])
    db.close()
    user.visit(f"{user.server().prefix}lab")
    with kernel:
        kernel.run("log.write('two\\n'); log.flush()")
        count = kernel.run("print(db.execute('select count(*) from t').fetchone()[0])")
    assert count.text == "5000\n"
    assert (home / "run.log").read_text().endswith("of another server\ntwo\n")


def page_of_refusal(user: User) -> requests.Response:
    """What a visit shows once the Hub has heard that the start was refused."""
    deadline = time.monotonic() + 30
    while True:
        page = user.http.get(f"{user.base}{user.server().prefix}lab", timeout=60)
        if "Try again" in page.text:
            return page
        assert time.monotonic() < deadline, "the start is still pending"
        time.sleep(0.2)


def test_deleted_or_shrunk_file_is_named_and_the_saved_session_is_kept(
    stack: Stack, admin: Admin, user: User
) -> None:
    path = home_of(stack, user) / "table.csv"
    kernel = suspended_kernel(
        admin,
        user,
        "_ = open('table.csv', 'w').write('1,2\\n' * 999)\nf = open('table.csv')",
    )
    saved = path.read_bytes()
    path.unlink()
    failure = refusal(admin, user)
    assert failure["code"] == "file_missing"
    assert "table.csv" in str(failure["message"])
    page = page_of_refusal(user)
    assert "table.csv" in page.text
    assert "Try again" in page.text
    assert "Start fresh" in page.text
    path.write_bytes(saved)
    admin.resume(user.name)
    admin.wait(user.name, phase="running")
    user.visit(f"{user.server().prefix}lab")
    with kernel:
        assert kernel.run("print(len(f.read()))").text == f"{len(saved)}\n"

    admin.suspend(user.name)
    os.truncate(path, 10)
    failure = refusal(admin, user)
    assert failure["code"] == "file_shrank"
    admin.call("POST", f"sessions/{user.name}/-/start-fresh")
    user.start_server()
    view = admin.wait(user.name, phase="running")
    assert len(view["saved"]) == 1
    user.visit(f"{user.server().prefix}lab")
    assert user.server().json("GET", "kernels") == []


@pytest.mark.long
def test_replaced_library_is_named_and_the_session_kept(
    stack: Stack, admin: Admin, user: User
) -> None:
    home = home_of(stack, user)
    import _ctypes_test as any_library

    library = home / "mine.so"
    library.write_bytes(Path(any_library.__file__).read_bytes())
    suspended_kernel(admin, user, "import ctypes; lib = ctypes.CDLL('./mine.so')")
    fresh = home / "mine.so.new"
    fresh.write_bytes(library.read_bytes() + b"of another version")
    fresh.rename(library)
    failure = refusal(admin, user)
    assert failure["code"] == "library_changed"
    assert "mine.so" in str(failure["message"])
    assert admin.session(user.name)["checkpoint"]


@pytest.mark.long
def test_second_server_on_the_same_home_is_no_obstacle(
    admin: Admin, user: User
) -> None:
    kernel = suspended_kernel(admin, user, "x = 'first'")
    user.start_server("other")
    second = user.server("other").start_kernel()
    with second:
        for number in range(30):
            second.run(f"y{number} = {number}")
    user.visit(f"{user.server().prefix}lab")
    with kernel:
        assert kernel.run("print(x)").text == "first\n"
        kernel.run("%history -l 3")
    user.hub("DELETE", f"users/{user.name}/servers/other", json={"remove": True})

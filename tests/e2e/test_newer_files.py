"""Files that went on behind a save point: asked for, moved aside, and put back."""

import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from demo.admin import Admin
from demo.user import User
from tests.e2e.test_cycle import by_command
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(300)

THEN = """
import sqlite3
get_ipython().history_manager.enabled = False
then = ["as saved"]
db = sqlite3.connect("a.sqlite", isolation_level=None)
db.execute("pragma journal_mode=wal")
_ = db.execute("create table t (n, text)")
_ = db.execute("begin")
_ = db.executemany("insert into t values (?, 'then')", [(n,) for n in range(2000)])
_ = db.execute("commit")
_ = db.execute("begin immediate")
_ = db.execute("pragma cache_size=10")
_ = db.executemany("insert into t values (?, ?)", [(n, "y" * 99) for n in range(2000)])
log = open("run.log", "w"); _ = log.write("one two "); log.flush()
"""
SINCE = """
_ = db.execute("commit")
_ = db.execute("begin")
_ = db.executemany("insert into t values (?, 'z')", [(n,) for n in range(3000)])
_ = db.execute("commit")
_ = then.append("since")
_ = log.write("three four five"); log.flush()
"""
BACK = """
_ = db.execute("commit")
_ = log.write("three again"); log.flush()
"""


def rows(folder: Path) -> int:
    db = sqlite3.connect(folder / "a.sqlite")
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    (count,) = db.execute("select count(*) from t").fetchone()
    db.close()
    return count


def refused(admin: Admin, user: User, code: str) -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        view = admin.session(user.name)
        failure = view["failure"] or {}
        if view["phase"] == "suspended" and failure.get("code") == code:
            return failure["message"]
        time.sleep(0.2)
    raise AssertionError(view)


def test_session_goes_back_with_its_files_and_nothing_newer_is_gone(
    stack: Stack, admin: Admin, user: User
) -> None:
    home, server = stack.folder / "homes" / user.name, user.server()
    kernel = server.start_kernel()
    with kernel:
        kernel.run(THEN)
        (result,) = by_command(stack, admin, "save", user.name)
        assert result["how"] == "done", result
        kernel.run(SINCE)
    tree = next(
        t for t in stack.trees() if t["key"] == {"user": user.name, "server": ""}
    )
    os.kill(tree["init_pid"], signal.SIGKILL)
    admin.wait(user.name, phase="suspended")

    # A visit does not bring it back: its user is asked.
    page = page_of_choice(user)
    assert "its last save point is from" in page
    assert admin.session(user.name)["phase"] == "suspended"
    # Its user says that it comes back, and is asked about what is newer.
    admin.resume(user.name)
    message = refused(admin, user, "files_newer")
    for name in ("a.sqlite", "run.log"):
        assert str(home / name) in message
    assert "Choose what comes back" in page_of_choice(user)
    assert (home / "run.log").read_text() == "one two three four five"
    assert not list(home.glob("newer than*"))

    # Another program has one of them open.
    with (home / "run.log").open():
        admin.call("POST", f"sessions/{user.name}/-/put-files-back")
        assert "run.log" in refused(admin, user, "file_in_use")
    admin.resume(user.name)
    refused(admin, user, "files_newer")
    (result,) = by_command(stack, admin, "put-files-back", user.name)
    assert result["how"] == "done", result
    user.visit(f"{server.prefix}lab")
    with kernel:
        kernel.run(BACK)
        assert kernel.run("print(then)").text == "['as saved']\n"
    (beside,) = home.glob("newer than*")
    assert rows(home) == 4000
    assert rows(beside) == 7000
    assert (home / "run.log").read_text() == "one two three again"
    assert (beside / "run.log").read_text() == "one two three four five"
    resumed = admin.session(user.name)["facts"]["resumed"]
    assert resumed["as_of"] > 0
    assert resumed["newer"] == [str(beside)]
    history = str(admin.call("GET", f"sessions/{user.name}/-/history"))
    assert "It is as it was at " in history
    assert str(beside) in history


def page_of_choice(user: User) -> str:
    """What a visit shows once the Hub has heard that there is a question.

    It starts nothing. While the Hub does not know that the session has ended, the page
    of a suspended session comes first, which leads there.
    """
    deadline = time.monotonic() + 60
    while True:
        user.http.get(f"{user.base}/hub/spawn/{user.name}", timeout=60)
        page = user.http.get(f"{user.base}{user.server().prefix}lab", timeout=60)
        if "Choose what comes back" in page.text:
            return page.text
        assert time.monotonic() < deadline, page.text[-2000:]
        time.sleep(0.3)

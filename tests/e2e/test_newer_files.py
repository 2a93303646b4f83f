"""Files that went on behind a save point: asked for, moved aside, and put back."""

import os
import signal
import time

import pytest

from demo.admin import Admin
from demo.user import User
from tests.e2e.test_cycle import by_command
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(300)

#: What becomes of databases is in ``node/test_going_back.py``.
THEN = """
get_ipython().history_manager.enabled = False
then = ["as saved"]
log = open("run.log", "w"); _ = log.write("one two "); log.flush()
"""
SINCE = """
_ = then.append("since")
_ = log.write("three four five"); log.flush()
"""


def refused(admin: Admin, user: User) -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        view = admin.session(user.name)
        failure = view["failure"] or {}
        if view["phase"] == "suspended" and failure.get("code") == "files_newer":
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
    message = refused(admin, user)
    assert str(home / "run.log") in message
    assert "Choose what comes back" in page_of_choice(user)
    assert (home / "run.log").read_text() == "one two three four five"
    assert not list(home.glob("newer than*"))

    (result,) = by_command(stack, admin, "put-files-back", user.name)
    assert result["how"] == "done", result
    user.visit(f"{server.prefix}lab")
    with kernel:
        kernel.run("_ = log.write('three again'); log.flush()")
        assert kernel.run("print(then)").text == "['as saved']\n"
    (beside,) = home.glob("newer than*")
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

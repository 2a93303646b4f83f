"""A session that is killed comes back as it was saved, if its user wants that."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_cycle import by_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo.admin import Admin
    from demo.user import User
    from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(240)


def test_killed_session_comes_back_as_it_was_saved_if_its_user_wants_that(
    stack: Stack, admin: Admin, user: User
) -> None:
    server = user.server()
    kernel = server.start_kernel()
    with kernel:
        kernel.run("get_ipython().history_manager.enabled = False")
        kernel.run("log = open('run.log', 'a'); x = ['as saved']")
        (result,) = by_command(stack, admin, "save", user.name)
        assert result["how"] == "done"
        # The same connection goes on.
        kernel.run("x.append('later'); log.write('one\\n'); log.flush()")
    assert admin.session(user.name)["phase"] == "running"

    tree = next(
        t for t in stack.trees() if t["key"] == {"user": user.name, "server": ""}
    )
    os.kill(tree["init_pid"], signal.SIGKILL)
    view = admin.wait(user.name, phase="suspended")
    assert view["failure"]["code"] == "ended_since_saved", view
    page = _page(user)
    assert "its last save point is from" in page
    assert "Choose what comes back" in page
    assert admin.session(user.name)["phase"] == "suspended"

    admin.resume(user.name)
    admin.wait(user.name, phase="running")
    user.visit(f"{server.prefix}lab")
    with kernel:
        assert kernel.run("print(x)").text == "['as saved']\n"
        kernel.run("log.write('two\\n'); log.flush()")
    log = stack.folder / "homes" / user.name / "run.log"
    assert log.read_text() == "one\ntwo\n"


@pytest.mark.long
def test_whatever_runs_is_saved_by_one_command_and_not_again_until_it_is_used(
    stack: Stack, admin: Admin, new_user: Callable[[], User]
) -> None:
    ada, bob = new_user(), new_user()
    for each in (ada, bob):
        each.start_server()
    kernel = bob.server().start_kernel()
    with kernel:
        kernel.run("x = 1")
        assert _all_saved(stack, admin, ada, bob) == ["saved", "saved"]
        point = admin.session(bob.name)["checkpoint"]
        # A sample after the save point has to show that nothing was used since.
        _until(
            lambda: _all_saved(stack, admin, ada, bob) == ["saved already"] * 2, pause=3
        )
        kernel.run("x = 2")
        since = time.time()
        _until(lambda: (admin.session(bob.name)["usage"] or {}).get("at", 0) > since)
        assert _all_saved(stack, admin, ada, bob) == ["saved already", "saved"]
    assert admin.session(bob.name)["checkpoint"] != point
    assert admin.session(bob.name)["phase"] == "running"


def _all_saved(stack: Stack, admin: Admin, *users: User) -> list[str]:
    """What became of these; others may run beside them."""
    told = by_command(stack, admin, "save-all", "--deadline", "60s")
    states = {each["key"]["user"]: each["state"] for each in told}
    return [states[user.name] for user in users]


def _until(condition: Callable[[], bool], seconds: float = 90, pause: float = 0.5):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(pause)


def _page(user: User) -> str:
    """What a visit comes to, which starts nothing.

    While the Hub does not know yet that the session has ended, there is first the page
    of a suspended session, which leads there.
    """
    deadline = time.monotonic() + 60
    while True:
        user.http.get(f"{user.base}/hub/spawn/{user.name}", timeout=60)
        page = user.http.get(f"{user.base}{user.server().prefix}lab", timeout=60)
        if "gpu-reclaim-reason" in page.text:
            return page.text
        assert time.monotonic() < deadline, page.text[-2000:]
        time.sleep(0.5)

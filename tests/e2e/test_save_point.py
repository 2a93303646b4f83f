"""A session that is killed comes back as it was saved, if its user wants that."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_cycle import by_command

if TYPE_CHECKING:
    from demo.admin import Admin
    from demo.user import User
    from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(240)


def test_session_that_is_killed_comes_back_as_it_was_saved(
    stack: Stack, admin: Admin, user: User
) -> None:
    server = user.server()
    kernel = server.start_kernel()
    with kernel:
        kernel.run("log = open('run.log', 'a'); x = 'as saved'")
        (result,) = by_command(stack, admin, "save", user.name)
        assert result["how"] == "done"
        # The same connection goes on.
        kernel.run("x = 'later'; log.write('one\\n'); log.flush()")
    assert admin.session(user.name)["phase"] == "running"

    tree = next(t for t in stack.trees() if t["key"]["user"] == user.name)
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
        assert kernel.run("print(x)").text.startswith("as saved\n")
        kernel.run("log.write('two\\n'); log.flush()")
    log = stack.folder / "homes" / user.name / "run.log"
    assert log.read_text() == "one\ntwo\n"


def _page(user: User) -> str:
    """What a visit shows; it starts nothing."""
    deadline = time.monotonic() + 60
    while True:
        user.http.get(f"{user.base}/hub/spawn/{user.name}", timeout=60)
        page = user.http.get(f"{user.base}{user.server().prefix}lab", timeout=60)
        if "save point" in page.text:
            return page.text
        assert time.monotonic() < deadline, page.text[-2000:]
        time.sleep(0.5)

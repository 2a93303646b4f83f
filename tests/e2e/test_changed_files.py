"""Files that changed while a session was suspended: safe ones pass, others say why."""

import os
import time
from pathlib import Path

import pytest
import requests

from demo.admin import Admin
from demo.user import Kernel, User
from tests.support.stack import Stack

#: ``node/test_orders.py`` has it without a Hub, ``hub/test_traps.py`` the page.
pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]


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
    assert [one["keeping"] for one in view["kept"]] == ["aside"]
    user.visit(f"{user.server().prefix}lab")
    assert user.server().json("GET", "kernels") == []

"""A save point is opened as another server of its user, beside its session.

A branch whose origin is killed is in ``test_save_point.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.admin import Admin
from tests.support.hub import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo.user import User
    from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(240)
NAME = "beside"


@pytest.mark.long
def test_branch_goes_on_beside_its_origin_and_neither_needs_the_other(
    stack: Stack, admin: Admin, user: User, new_user: Callable[[], User]
) -> None:
    server = user.server()
    with server.start_kernel() as kernel:
        kernel.run("get_ipython().history_manager.enabled = False; x = ['saved']")
        mine, path = Admin(stack, user), f"sessions/{user.name}/-/saved"
        mine.call("POST", f"sessions/{user.name}/-/save")
        (saved,) = wait_until(lambda: mine.call("GET", path), 60)
        kernel.run("x.append('origin')")
    stranger = Admin(stack, new_user())
    wanted = ("POST", f"{path}/{saved['id']}/branch")
    with pytest.raises(RuntimeError, match="unknown_session"):
        stranger.call(*wanted, json={"server": NAME})

    answer = mine.call(*wanted, json={"server": NAME})

    assert "same home folder" in answer["warning"]
    view = admin.wait(user.name, NAME, phase="running")
    assert view["failure"] is None
    user.visit(f"/user/{user.name}/{NAME}/lab")
    there = user.server(NAME)
    (found,) = there.json("GET", "kernels")
    assert found["id"] == kernel.id
    with there.kernel(kernel.id) as beside, server.kernel(kernel.id) as origin:
        assert (
            beside.run("x.append('beside'); print(x)").text == "['saved', 'beside']\n"
        )
        assert origin.run("print(x)").text == "['saved', 'origin']\n"
    with pytest.raises(RuntimeError, match="branch_impossible"):
        mine.call(*wanted, json={"server": NAME})

    # What it was saved as is not needed any more, and it has a life of its own.
    mine.call("DELETE", path)
    admin.suspend(user.name, NAME)
    assert admin.session(user.name)["phase"] == "running"
    admin.resume(user.name, NAME)
    admin.wait(user.name, NAME, phase="running")
    with there.kernel(kernel.id) as beside, server.kernel(kernel.id) as origin:
        assert beside.run("print(x)").text == "['saved', 'beside']\n"
        assert origin.run("print(x)").text == "['saved', 'origin']\n"
    user.hub("DELETE", f"users/{user.name}/servers/{NAME}", json={"remove": True})

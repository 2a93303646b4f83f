"""Ten sessions suspended and resumed in turn, all back."""

from collections.abc import Callable

import pytest

from demo.admin import Admin
from demo.user import User
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(400)

SESSIONS = 10


@pytest.mark.long  # two at once are in test_cycle.py, hundreds in "make soak"
def test_ten_sessions_suspended_in_turn_all_come_back(
    stack: Stack, admin: Admin, new_user: Callable[[], User]
) -> None:
    kernels = []
    for index in range(SESSIONS):
        user = new_user()
        user.start_server()
        kernel = user.server().start_kernel()
        with kernel:
            kernel.run(f"mine = {index}")
        admin.call("POST", f"sessions/{user.name}/-/suspend")
        kernels.append((user, kernel))
    for user, _ in kernels:
        admin.wait(user.name, phase="suspended")
    names = {user.name for user, _ in kernels}
    assert not [t for t in stack.trees() if t["key"]["user"] in names]
    for index, (user, kernel) in enumerate(kernels):
        user.visit(f"{user.server().prefix}lab")
        with kernel:
            assert kernel.run("print(mine)").text == f"{index}\n"
    running = [t["key"]["user"] for t in stack.trees() if t["state"] == "running"]
    assert names <= set(running)
    assert len(running) == len(set(running))

"""Hub, service and agent, each killed at every phase: the session lives or is saved."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from demo.user import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo.admin import Admin
    from demo.stack import Stack
    from demo.user import Kernel, User

pytestmark = pytest.mark.timeout(180)

PARTS = ("hub", "service", "agent")
MOMENTS = ("running", "capturing", "captured", "suspended", "restoring", "resumed")


def tree_state(stack: Stack, user: User) -> str:
    """What the agent says of the user's processes; empty when it says nothing."""
    try:
        trees = stack.trees()
    except OSError:
        return ""
    return ",".join(t["state"] for t in trees if t["key"]["user"] == user.name)


def until_state(stack: Stack, user: User, *states: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if tree_state(stack, user) in states:
            return
    raise AssertionError(f"never {states}, now {tree_state(stack, user)!r}")


def in_background(work: Callable[[], object]) -> threading.Thread:
    """Do something whose answer may never come, because we kill who would answer."""

    def quietly() -> None:
        try:
            work()
        except (OSError, UserError):
            return

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    return thread


def reach(moment: str, stack: Stack, admin: Admin, user: User) -> None:
    """Bring the session to that moment of its life."""
    if moment == "running":
        return
    path = f"sessions/{user.name}/-/suspend"
    in_background(lambda: admin.call("POST", path))
    if moment in {"capturing", "captured"}:
        # A phase may be too short to be seen; the one after it will do.
        until_state(stack, user, moment, "captured", "")
        return
    admin.wait(user.name, phase="suspended")
    if moment == "suspended":
        return
    in_background(lambda: user.visit(f"{user.server().prefix}lab", seconds=30))
    until_state(stack, user, "restoring", "running")
    if moment == "resumed":
        until_state(stack, user, "running")


def restart(stack: Stack, part: str) -> None:
    stack.kill(part)
    if part == "hub":
        stack.start_hub()
    elif part == "agent":
        stack.start_agent()


def comes_back(user: User, kernel: Kernel) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            user.visit(f"{user.server().prefix}lab", seconds=30)
            with kernel:
                assert kernel.run("print(x)").text == "7\n"
        except (UserError, OSError) as error:
            if time.monotonic() > end:
                raise AssertionError(f"did not come back: {error}") from error
            time.sleep(0.5)
        else:
            return


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("part", PARTS)
def test_part_killed_at_any_moment_loses_and_doubles_no_session(
    stack: Stack, admin: Admin, user: User, part: str, moment: str
) -> None:
    kernel = user.server().start_kernel()
    with kernel:
        kernel.run("import os; ballast = os.urandom(200 << 20); x = 7")
    reach(moment, stack, admin, user)
    restart(stack, part)
    admin.settle(user.name)
    comes_back(user, kernel)
    assert tree_state(stack, user) == "running"  # one, not two

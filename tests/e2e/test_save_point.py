"""All that runs is saved by one command."""

import time
from collections.abc import Callable

import pytest

from demo.admin import Admin
from demo.user import User
from tests.e2e.test_cycle import by_command
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(240)


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
        assert _all_saved(stack, admin, ada, bob) == ["done", "done"]
        point = admin.session(bob.name)["checkpoint"]
        # A sample after the save point has to show that nothing was used since.
        _until(
            lambda: _all_saved(stack, admin, ada, bob) == ["saved already"] * 2, pause=3
        )
        kernel.run("x = 2")
        since = time.time()
        _until(lambda: (admin.session(bob.name)["usage"] or {}).get("at", 0) > since)
        assert _all_saved(stack, admin, ada, bob) == ["saved already", "done"]
    assert admin.session(bob.name)["checkpoint"] != point
    assert admin.session(bob.name)["phase"] == "running"


def _all_saved(stack: Stack, admin: Admin, *users: User) -> list[str]:
    """What became of these; others may run beside them."""
    told = by_command(stack, admin, "save-all", "--deadline", "60s")
    hows = {each["key"]["user"]: each["how"] for each in told}
    return [hows[user.name] for user in users]


def _until(condition: Callable[[], bool], seconds: float = 90, pause: float = 0.5):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(pause)

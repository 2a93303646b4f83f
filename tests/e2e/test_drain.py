"""A machine is drained in time: everything on it is safe, what was at work goes on."""

import time
from collections.abc import Callable

import pytest

from demo.admin import Admin
from demo.user import User
from tests.e2e.test_cycle import by_command
from tests.support.hub import wait_until
from tests.support.stack import Stack

DEADLINE = 150.0  #: seconds
#: Writes each number once, as long as the kernel lives.
COUNTS = """
import itertools, time
for i in itertools.count():
    with open('counted', 'a') as file:
        file.write(f'{i}\\n')
    time.sleep(0.05)
"""

pytestmark = pytest.mark.timeout(400)


def test_machine_is_drained_before_its_deadline_and_everything_comes_back(
    stack: Stack, admin: Admin, new_user: Callable[[], User]
) -> None:
    users, busy = [new_user() for _ in range(2)], 1  # so many of them
    kernels = []
    for index, user in enumerate(users):
        user.start_server()
        kernel = user.server().start_kernel()
        with kernel:
            kernel.run(f"mine = {index}")
            if index < busy:
                kernel.send(COUNTS)
        kernels.append(kernel)
    counted = [stack.folder / "homes" / u.name / "counted" for u in users[:busy]]
    wait_until(lambda: all(file.exists() for file in counted), 60)
    begun = time.monotonic()
    try:
        told = by_command(
            stack, admin, "drain", "--yes", "--deadline", f"{DEADLINE:g}s"
        )
        took = time.monotonic() - begun
        names = {user.name for user in users}
        mine = {t["key"]["user"]: t["state"] for t in told if t["key"]["user"] in names}
        assert set(mine.values()) == {"saved"}
        assert len(mine) == len(users)
        assert took < DEADLINE
        assert not [t for t in stack.trees() if t["key"]["user"] in names]

        page = users[-1].http.get(
            f"{users[-1].base}/hub/spawn/{users[-1].name}", timeout=60
        )
        assert "closed for maintenance since" in page.text
        assert admin.session(users[-1].name)["phase"] == "suspended"
    finally:
        admin.call("DELETE", "nodes/-/drain")
    users[-1].start_server()  # the Hub shows the failure of before until it is asked
    for index, (user, kernel) in enumerate(zip(users, kernels, strict=True)):
        user.visit(f"{user.server().prefix}lab")
        if index >= busy:
            with kernel:
                assert kernel.run("print(mine)").text == f"{index}\n"
    for file in counted:
        before = len(file.read_text().splitlines())
        wait_until(lambda: len(file.read_text().splitlines()) > before, 60)  # noqa: B023
        numbers = [int(line) for line in file.read_text().splitlines()]
        assert numbers == list(range(len(numbers)))

"""A machine is drained in time: everything on it is safe, what was at work goes on."""

import time
from collections.abc import Callable

import pytest

from demo.admin import Admin
from demo.user import User
from tests.e2e.test_cycle import by_command
from tests.support.stack import Stack

#: Ten are saved two at a time: half a minute on two idle cores, minutes on busy ones.
DEADLINE = 150.0
#: Writes each number once, as long as the kernel lives.
COUNTS = """
import itertools, time
for i in itertools.count():
    with open('counted', 'a') as file:
        file.write(f'{i}\\n')
    time.sleep(0.05)
"""

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize(
    ("sessions", "busy"), [(2, 1), pytest.param(10, 3, marks=pytest.mark.long)]
)
def test_machine_is_drained_before_its_deadline_and_everything_comes_back(
    stack: Stack, admin: Admin, new_user: Callable[[], User], sessions: int, busy: int
) -> None:
    users = [new_user() for _ in range(sessions)]
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
    _until(lambda: all(file.exists() for file in counted))
    begun = time.monotonic()
    try:
        told = by_command(
            stack, admin, "drain", "--yes", "--deadline", f"{DEADLINE:g}s"
        )
        took = time.monotonic() - begun
        names = {user.name for user in users}
        mine = {t["key"]["user"]: t["state"] for t in told if t["key"]["user"] in names}
        assert set(mine.values()) == {"saved"}
        assert len(mine) == sessions
        assert took < DEADLINE
        assert not [t for t in stack.trees() if t["key"]["user"] in names]
        print(f"{sessions} sessions, {busy} at work: drained in {took:.1f} s")

        page = users[-1].http.get(
            f"{users[-1].base}/hub/spawn/{users[-1].name}", timeout=60
        )
        assert "closed for maintenance since" in page.text
        assert admin.session(users[-1].name)["phase"] == "suspended"
    finally:
        by_undrain(stack, admin)
    users[-1].start_server()  # the Hub shows the failure of before until it is asked
    for index, (user, kernel) in enumerate(zip(users, kernels, strict=True)):
        user.visit(f"{user.server().prefix}lab")
        if index >= busy:
            with kernel:
                assert kernel.run("print(mine)").text == f"{index}\n"
    for file in counted:
        before = len(file.read_text().splitlines())
        _until(lambda: len(file.read_text().splitlines()) > before)  # noqa: B023
        numbers = [int(line) for line in file.read_text().splitlines()]
        assert numbers == list(range(len(numbers)))


def by_undrain(stack: Stack, admin: Admin) -> None:
    admin.call("DELETE", "nodes/-/drain")


def _until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

"""A Hub whose database is replaced beside a session that runs, on the whole stack.

What runs is never ended for it: it is adopted where its account is known to be the one
that has started it, and left alone, with the reason, until an administrator has said
whose it is.
"""

from collections.abc import Iterator

import pytest

from demo.admin import Admin
from demo.user import User
from tests.support import light_server
from tests.support.stack import Stack


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack of its own: what is done to its database concerns everybody."""
    folder = tmp_path_factory.mktemp("stack")
    with Stack(folder, idle_after=0, server=light_server.COMMAND) as stack:
        yield stack


class Ada:
    """A user with a kernel whose value no other session knows."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.user = self._logged_in()
        self.kernel = ""

    def _logged_in(self) -> User:
        user = User(self.stack.url, "ada", self.stack.password)
        user.login()
        return user

    def work(self) -> None:
        self.user.start_server()
        with self.user.server().start_kernel() as kernel:
            kernel.run("x = 42")
            self.kernel = kernel.id

    def finds_her_work(self) -> bool:
        with self.user.server().kernel(self.kernel) as kernel:
            return bool(kernel.run("x").result == "42")

    def inits(self) -> list[int]:
        """Pids of what runs of all sessions."""
        return [tree["init_pid"] for tree in self.stack.trees()]

    def meets_another_database(self, backup: bytes | None) -> None:
        self.stack.kill("hub")
        file = self.stack.folder / "jupyterhub.sqlite"
        file.unlink()
        if backup is not None:
            file.write_bytes(backup)
        self.stack.start_hub()
        self.user = self._logged_in()


@pytest.mark.long
def test_session_that_runs_beside_another_database_is_adopted_or_left_alone(
    stack: Stack,
) -> None:
    ada = Ada(stack)
    backup = (stack.folder / "jupyterhub.sqlite").read_bytes()
    ada.work()
    inits = ada.inits()

    ada.meets_another_database(backup)  # it has her account, and no server of hers
    ada.user.start_server()
    assert ada.inits() == inits
    assert ada.finds_her_work()

    ada.meets_another_database(None)
    for _ in range(2):
        refused = ada.user.hub("POST", "users/ada/server", json={})
        assert refused.status_code == 409
        assert "A session of ada is running already" in refused.json()["message"]
        assert ada.inits() == inits
    page = ada.user.http.get(f"{stack.url}/hub/spawn/ada", timeout=60)
    assert "It is left alone, and goes on" in page.text
    assert "Start fresh" not in page.text
    admin = Admin(stack)
    assert admin.session("ada")["failure"]["code"] == "not_adopted"
    admin.call("POST", "sessions/ada/-/renew-login")
    ada.user.start_server()
    assert admin.session("ada")["failure"] is None
    assert ada.inits() == inits
    assert ada.finds_her_work()

"""Hooks of a Hub whose sessions are suspended, saved, drained and brought back."""

import pytest

from demo.admin import Admin
from demo.stack import HERE
from demo.user import User
from tests.e2e.test_cycle import by_command
from tests.e2e.test_drain import by_undrain
from tests.support import light_server
from tests.support.hub import wait_until
from tests.support.stack import Stack

CONFIG = """
import os
load_subconfig({path!r})
def noting(hook):
    def note(spawner, *_):
        print(hook, file=open({file!r}, "a"))
    return note
for hook in ("pre_spawn_hook", "post_stop_hook"):
    setattr(c.Spawner, hook, noting(hook))
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_hooks_of_starts_run_at_returns_and_those_of_ends_at_ends(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("s")  # short: sockets stand in it
    hooks, config = folder / "hooks", folder / "jupyterhub_config.py"
    demo = str(HERE / "jupyterhub_config.py")
    config.write_text(CONFIG.format(path=demo, file=str(hooks)))

    def run() -> list[str]:
        names = hooks.read_text().split()
        hooks.write_text("")
        return names

    stack = Stack(folder, server=light_server.COMMAND, idle_after=0, sample_interval=1)
    stack.config = config
    with stack:
        admin, ann = Admin(stack), User(stack.url, "ann", stack.password)
        ann.login()
        ann.start_server()
        lab = f"{ann.server().prefix}lab"
        assert run() == ["pre_spawn_hook"]
        admin.suspend("ann")
        assert run() == []
        ann.visit(lab)
        assert run() == ["pre_spawn_hook"]
        by_command(stack, admin, "save", "ann")
        assert run() == []
        by_command(stack, admin, "drain", "--yes", "--deadline", "60s")
        assert admin.session("ann")["phase"] == "suspended"
        assert run() == []
        by_undrain(stack, admin)
        ann.start_server()
        assert run() == ["pre_spawn_hook"]
        admin.suspend("ann")
        admin.call("POST", "sessions/ann/-/delete", json={"everything": True})
        wait_until(lambda: run() == ["post_stop_hook"], 30)
        ann.start_server()
        assert run() == ["pre_spawn_hook"]
        ann.hub("DELETE", "users/ann/server", json={})
        admin.wait("ann", phase="stopped")
        assert run() == ["post_stop_hook"]

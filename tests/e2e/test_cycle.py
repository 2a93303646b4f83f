"""A session is suspended and comes back: kernels, variables, terminals, login."""

import json
import os
import time
from typing import Any

import pytest

from demo.admin import Admin
from demo.check import terminal_lives, terminal_pids
from demo.processes import alive
from demo.stack import BIN
from demo.user import Kernel, User
from tests.support.ran import ran
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(240)


def test_session_suspended_and_visited_comes_back_whole_until_it_is_stopped(
    stack: Stack, admin: Admin, user: User
) -> None:
    server = user.server()
    kernel = server.start_kernel()
    with kernel:
        pid = kernel.run("import os; x = 42; print(os.getpid())").text
    terminal = server.start_terminal()
    pids = terminal_pids(server, terminal)
    tree = next(t for t in stack.trees() if t["key"]["user"] == user.name)
    assert tree["session"]
    assert tree["account"]
    (result,) = by_command(stack, admin, "suspend", user.name)
    assert result["how"] == "done"
    assert admin.session(user.name)["last_suspend"]["generation"] == 1
    assert not alive(tree["init_pid"])

    polls_do_not_wake(admin, user, kernel)

    page = user.visit(f"{server.prefix}lab")
    assert page.status_code == 200
    assert user.logins == 1
    with kernel:
        assert kernel.run("import os; print(x, os.getpid())").text == f"42 {pid}"
    terminal_lives(server, terminal, pids)
    assert [t["name"] for t in server.json("GET", "terminals")] == [terminal]
    assert admin.wait(user.name, phase="running")["failure"] is None
    back = next(t for t in stack.trees() if t["key"]["user"] == user.name)
    assert back["incarnation"] != tree["incarnation"]
    assert (back["session"], back["account"]) == (tree["session"], tree["account"])
    told = events_until(stack, user.name, "restored")
    assert ("ask to suspend", "admin") in told
    assert ("released", "gpu-reclaim") in told

    stop_is_a_real_stop(admin, user, back["init_pid"])


def polls_do_not_wake(admin: Admin, user: User, kernel: Kernel) -> None:
    """What an open tab asks by itself leaves a suspended session suspended."""
    server = user.server()
    for path in ("kernels", "sessions", "terminals", f"kernels/{kernel.id}", "status"):
        for _ in range(3):
            assert server.api("GET", path).status_code in {424, 503}
    with pytest.raises(Exception, match=r"424|503|HTTP"):
        kernel.connect()
    assert admin.session(user.name)["phase"] == "suspended"


def stop_is_a_real_stop(admin: Admin, user: User, init_pid: int) -> None:
    """What the user stops has ended, and the next start is a fresh one."""
    user.hub("DELETE", f"users/{user.name}/server", json={})
    until = time.monotonic() + 20
    while alive(init_pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive(init_pid)
    admin.wait(user.name, phase="stopped")
    user.start_server()
    assert user.server().json("GET", "kernels") == []


def by_command(stack: Stack, admin: Admin, *line: str) -> list[dict[str, Any]]:
    done = ran(
        [BIN / "jupyterhub-gpu-reclaim", *line, "--json", f"--url={stack.url}"],
        env={**os.environ, "JUPYTERHUB_API_TOKEN": admin.headers["Authorization"][6:]},
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return list(json.loads(done.stdout))


def events_until(stack: Stack, user: str, last: str) -> list[tuple[str, str]]:
    deadline = time.monotonic() + 60
    while True:
        lines = (stack.folder / "events.jsonl").read_text().splitlines()
        events = [e for e in map(json.loads, lines) if e["key"]["user"] == user]
        told = [(event["what"], event["who"]) for event in events]
        if last in dict(told):
            return told
        assert time.monotonic() < deadline, told
        time.sleep(0.2)

"""A session naps and wakes under a real Hub, service and agent; card and driver are
false.

The kernel ends if it runs while its card is away, so what it answers shows that it did
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.admin import Admin
from demo.stack import Stack as DemoStack
from demo.user import User
from jupyterhub_gpu_reclaim.linux import processes
from tests.e2e.test_cycle import by_command
from tests.support import fake_cards, light_server
from tests.support.hub import wait_until

if TYPE_CHECKING:
    from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(300)


def is_stopped(stack: Stack, name: str, pid: int) -> bool:
    """Whether that program of the user's session is stopped; by its pid there."""
    (tree,) = [t for t in stack.trees() if t["key"]["user"] == name]
    snapshot = processes.snapshot(tree["init_pid"])
    (found,) = [p for p in snapshot.processes if p.ns_pid == pid]
    return found.stopped


def test_session_naps_by_order_wakes_by_a_cell_and_is_suspended_from_a_nap(
    stack: Stack, admin: Admin, user: User, card: str
) -> None:
    if not card:
        pytest.skip(fake_cards.NEEDS)
    server = user.server()
    kernel = server.start_kernel()
    with kernel:
        kernel.run(f"import os; os.environ['FALSE_CARD'] = '{card}'; x = 42")
        kernel.run((fake_cards.FAKE / "cell.py").read_text())
        pid = int(kernel.run("print(os.getpid())").text)
        assert admin.wait(user.name, phase="running")

        (result,) = by_command(stack, admin, "nap", user.name)
        assert result["how"] == "done", result
        assert admin.session(user.name)["phase"] == "napping"
        assert is_stopped(stack, user.name, pid)
        # A page that is opened asks the server, which runs.
        assert user.visit(f"{server.prefix}lab").status_code == 200
        assert server.json("GET", "kernels")
        assert is_stopped(stack, user.name, pid)

        assert kernel.run("print(x, int(has_card()))").text.split() == ["42", "1"]
        admin.wait(user.name, phase="running")
        assert not is_stopped(stack, user.name, pid)

        for order, phase in (
            ("nap", "napping"),
            ("wake", "running"),
            ("nap", "napping"),
        ):
            admin.call("POST", f"sessions/{user.name}/-/{order}")
            admin.wait(user.name, phase=phase)
    admin.suspend(user.name)
    assert user.visit(f"{server.prefix}lab").status_code == 200
    with kernel:
        assert kernel.run("print(x, int(has_card()))").text.split() == ["42", "1"]
    said = admin.call("GET", f"sessions/{user.name}/-/history")
    whats = [line["what"] for line in reversed(said)]
    naps = [what for what in whats if what in {"naps", "wakes", "suspend"}]
    assert naps == ["naps", "wakes", "naps", "wakes", "naps", "suspend"]


@pytest.mark.long
def test_kernel_that_nobody_uses_naps_by_itself_while_another_one_works(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("s")
    settings = {
        "idle_after": 600,
        "sample_interval": 1,
        "server": light_server.COMMAND,
        "service_options": {
            "NapPolicy.nap_after": 3,
            # What plays the driver looks two hundred times a second.
            "IdlePolicy.busy_cpu_percent": 60,
        },
    }
    with (
        fake_cards.card_for_sessions(tmp_path_factory, measured=True) as card,
        # Not the preloaded one: an agent that is forked finds no other libraries.
        DemoStack(folder, **settings) as stack,
    ):
        admin = Admin(stack)
        user = User(stack.url, "olga", stack.password)
        user.login()
        user.start_server()
        server = user.server()
        works, idle = server.start_kernel(), server.start_kernel()
        pids = {}
        with works, idle:
            for kernel in (works, idle):
                kernel.run(f"import os; os.environ['FALSE_CARD'] = '{card}'; x = 42")
                kernel.run((fake_cards.FAKE / "cell.py").read_text())
                pids[kernel] = int(kernel.run("print(os.getpid())").text)
            works.send("import time\nfor n in range(600): time.sleep(0.1)")
            wait_until(lambda: is_stopped(stack, user.name, pids[idle]), 60)
            assert not is_stopped(stack, user.name, pids[works])
            assert admin.session(user.name)["phase"] == "running"
            assert idle.run("print(x, int(has_card()))").text.split() == ["42", "1"]
            assert not is_stopped(stack, user.name, pids[works])
        said = admin.call("GET", f"sessions/{user.name}/-/history")
        (line,) = [line for line in said if line["what"] == "naps"]
        assert line["message"].startswith("Idle kernels in a session that is at work: ")

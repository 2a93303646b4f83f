"""A session naps and wakes under a real Hub, service and agent; card and driver are
false.

The kernel ends if it runs while its card is away, so what it answers shows that it did
not.
"""

import pytest

from demo.admin import Admin
from demo.user import User
from jupyterhub_gpu_reclaim.linux import processes
from tests.e2e.test_cycle import by_command
from tests.support import fake_cards
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

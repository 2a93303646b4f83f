"""Two named servers of one user belong together, with a connection between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.admin import Admin
from demo.user import User
from tests.support import light_server
from tests.support.stack import Stack

if TYPE_CHECKING:
    from demo.user import Kernel

LISTENS = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
mine = "first"
print(port)
"""
CONNECTS = """
import socket
mine = "second"
def connect():
    global link
    link = socket.create_connection(("127.0.0.1", {port}), timeout=5)
    link.sendall(b"hello")
connect()
"""
TAKES = "link, _ = listener.accept(); link.settimeout(5); print(link.recv(5).decode())"
#: What a capture refuses: a user namespace of its own.
BEGINS = 'import subprocess; odd = subprocess.Popen(["unshare", "-U", "sleep", "600"])'
ENDS = "odd.kill(); odd.wait(); 0"
USES = """
try:
    link.sendall(b"?"); print(repr(link.recv(1)))
except OSError as error:
    print(type(error).__name__)
"""

pytestmark = pytest.mark.timeout(300)


def test_two_servers_go_together_or_not_at_all_and_come_back_together(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rules = [{"server": "job-*", "together": True}]
    with Stack(
        tmp_path_factory.mktemp("together"),
        idle_after=0,
        server=light_server.COMMAND,
        service_options={"Rules.rules": rules},
    ) as stack:
        admin, user = Admin(stack), User(stack.url, "ann", stack.password)
        user.login()
        for server in ("job-a", "job-b"):
            user.start_server(server)
        first, second = (user.server(s).start_kernel() for s in ("job-a", "job-b"))
        connected(first, second)

        run(second, BEGINS)
        admin.call("POST", "sessions/ann/job-a/suspend")
        admin.settle("ann", "job-a", rest=5)
        failure = admin.session("ann", "job-a")["failure"]
        why = admin.session("ann", "job-b")["failure"]["message"]
        assert failure["code"] == "together_failed"
        assert "ann/job-b" in failure["message"]
        assert why in failure["message"]
        assert [run(k, "print(mine)") for k in (first, second)] == ["first", "second"]
        run(second, ENDS)

        run(second, "connect()")
        assert run(first, TAKES) == "hello"
        admin.suspend("ann", "job-a")
        admin.wait("ann", "job-b", phase="suspended", seconds=5)
        assert [t for t in stack.trees() if t["key"]["user"] == "ann"] == []

        user.visit(f"{user.server('job-b').prefix}lab")
        admin.wait("ann", "job-a", phase="running")
        user.visit(f"{user.server('job-a').prefix}lab")
        assert [run(k, "print(mine)") for k in (first, second)] == ["first", "second"]
        cut = {run(kernel, USES) for kernel in (first, second)}
        print(f"after the return, the connection between them: {cut}")
        assert cut <= {"ConnectionResetError", "BrokenPipeError", "OSError", "b''"}
        run(second, "connect()")
        assert run(first, TAKES) == "hello"


def connected(first: Kernel, second: Kernel) -> None:
    port = run(first, LISTENS)
    run(second, CONNECTS.format(port=port))
    assert run(first, TAKES) == "hello"


def run(kernel: Kernel, code: str) -> str:
    with kernel:
        output = kernel.run(code)
    assert not output.error, output.error
    return output.text.strip()

"""Two named servers of one user belong together, with a connection between them."""

from collections.abc import Callable

import pytest

from demo.admin import Admin
from demo.user import Kernel, User
from tests.support.hub import wait_until
from tests.support.stack import Stack

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

#: ``controlplane/test_together.py`` has it without programs.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def test_two_servers_go_together_or_not_at_all_and_come_back_together(
    stack: Stack, admin: Admin, new_user: Callable[[], User]
) -> None:
    user = new_user()
    name = user.name
    for server in ("job-a", "job-b"):
        user.start_server(server)
    first, second = (user.server(s).start_kernel() for s in ("job-a", "job-b"))
    connected(first, second)

    run(second, BEGINS)
    admin.call("POST", f"sessions/{name}/job-a/suspend")
    failure = wait_until(lambda: admin.session(name, "job-a")["failure"], 60)
    admin.settle(name, "job-a")
    why = admin.session(name, "job-b")["failure"]["message"]
    assert failure["code"] == "together_failed"
    assert f"{name}/job-b" in failure["message"]
    assert why in failure["message"]
    assert [run(k, "print(mine)") for k in (first, second)] == ["first", "second"]
    run(second, ENDS)

    run(second, "connect()")
    assert run(first, TAKES) == "hello"
    admin.suspend(name, "job-a")
    admin.wait(name, "job-b", phase="suspended", seconds=5)
    assert [t for t in stack.trees() if t["key"]["user"] == name] == []

    user.visit(f"{user.server('job-b').prefix}lab")
    admin.wait(name, "job-a", phase="running")
    user.visit(f"{user.server('job-a').prefix}lab")
    assert [run(k, "print(mine)") for k in (first, second)] == ["first", "second"]
    cut = {run(kernel, USES) for kernel in (first, second)}
    print(f"after the return, the connection between them: {cut}")
    assert cut <= {"ConnectionResetError", "BrokenPipeError", "OSError", "b''"}
    run(second, "connect()")
    assert run(first, TAKES) == "hello"
    for server in ("job-a", "job-b"):
        user.hub("DELETE", f"users/{name}/servers/{server}", json={"remove": True})


def connected(first: Kernel, second: Kernel) -> None:
    port = run(first, LISTENS)
    run(second, CONNECTS.format(port=port))
    assert run(first, TAKES) == "hello"


def run(kernel: Kernel, code: str) -> str:
    with kernel:
        output = kernel.run(code)
    assert not output.error, output.error
    return output.text.strip()

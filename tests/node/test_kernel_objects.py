"""What the kernel keeps beside a program's memory, through the agent's HTTP calls."""

import pytest

from jupyterhub_gpu_reclaim.checkpoint.kinds import system_v
from tests.checkpoint.kinds.memory import KINDS

pytestmark = pytest.mark.shares_an_agent

#: Runs programs of the table; ``see`` is what one sees now.
RUNNER = """
import subprocess, sys
children = {}
def start(name, program):
    child = children[name] = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return child.stdout.readline()
def see(name):
    child = children[name]
    child.stdin.write("\\n"), child.stdin.flush()
    return child.stdout.readline()
"""
NAMES = ("System V shared memory", "kernel AIO (io_setup)")


def suspend_and_resume(agent, server, places, checkpoint, generation) -> None:
    captured = agent.capture(server.place, checkpoint, generation)
    assert captured[-1].get("checkpoint"), captured[-1]
    body = {"checkpoint": checkpoint}
    path = f"/v1/sessions/{server.place.incarnation}/release"
    assert agent.post(path, body).json()["state"] == "gone"
    server.place = places("hold")
    agent.come_back(server.place, checkpoint)


def test_queue_is_named_and_segments_and_kernel_aio_come_back_twice(
    agent, jupyter, places
):
    server = jupyter()
    kernel = server.start_kernel()

    # A POSIX queue cannot be saved: it is refused by name, and the session runs on.
    server.run(
        kernel,
        "import ctypes, os; librt = ctypes.CDLL('librt.so.1')\n"
        "os.close(librt.mq_open(b'/mine', os.O_RDWR | os.O_CREAT, 0o600, None))",
    )
    refused = agent.capture(server.place, "cp-0")[-1]
    assert refused["failure"]["code"] == "ipc_unsupported"
    assert "the POSIX message queue /mine" in refused["failure"]["message"]
    assert server.run(kernel, "librt.mq_unlink(b'/mine')") == "0"

    server.run(kernel, RUNNER)
    saw = {
        one.name: server.run(kernel, f"start({one.name!r}, {one.program!r})")
        for one in KINDS
        if one.name in NAMES
    }
    assert all(saw.values())
    for generation in (1, 2):
        suspend_and_resume(agent, server, places, f"cp-{generation}", generation)
        now = {name: server.run(kernel, f"see({name!r})") for name in saw}
        assert now == saw
    segments = system_v.look(server.place.init_pid).segments
    assert sorted(segments.values()) == [8192, 3 * 4096 + 7, 8 << 20]

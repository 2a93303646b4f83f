"""What the agent leaves behind on the machine: ports, samples, TLS, ended restores."""

import os
import resource
import socket
import ssl
from pathlib import Path

import httpx
import pytest

from jupyterhub_gpu_reclaim.linux.sock_diag import Diag, TcpState
from tests.support.agent import Agent, criu_folder, wait_for
from tests.support.certificates import certificate

pytestmark = pytest.mark.shares_an_agent

#: A state of /proc/net/tcp: closed by this side, and not to be used for a minute.
TIME_WAIT = "06"
IP_LOCAL_PORT_RANGE = 51  # <linux/in.h>, Linux 6.3


def bound() -> set[int]:
    with Diag(os.getpid()) as diag:
        unused = {TcpState.CLOSE, TcpState.BOUND_INACTIVE}
        return {one.local.port for one in diag.sockets() if one.state in unused}


def connections_of(port: int) -> list[str]:
    """States of the machine's TCP sockets that have that local port."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[3] for row in rows if int(row[1].split(":")[1], 16) == port]


def test_node_tells_versions_and_the_room_on_its_disks(agent):
    status = agent.get("/v1/status").json()
    assert status["host"] == socket.gethostname()
    assert status["criu"].startswith("4.")
    assert 0 < status["store_free"] <= status["state_free"]
    assert status["cards"] == []


def test_agent_leaves_no_core_file_and_lets_sessions_have_theirs(agent):
    limits = Path(f"/proc/{agent.popen.pid}/limits").read_text().splitlines()
    (core,) = (line.split() for line in limits if line.startswith("Max core"))
    assert core[4] == "0"
    mine = resource.getrlimit(resource.RLIMIT_CORE)[1]
    assert core[5] == ("unlimited" if mine == resource.RLIM_INFINITY else str(mine))


def test_samples_know_running_and_captured_sessions(agent, jupyter):
    server = jupyter()
    kernel = server.start_kernel()
    (running,) = agent.get("/v1/samples").json()
    agent.capture(server.place, "cp")
    (captured,) = agent.get("/v1/samples").json()

    assert [one["id"] for one in running["kernels"]] == [kernel]
    assert running["problem"] == ""
    assert captured["incarnation"] == running["incarnation"]
    assert captured["kernels"] is None
    assert captured["problem"]
    identity = agent.get("/v1/checkpoints/cp/identity").json()
    assert identity["api_token"] == server.TOKEN
    assert identity["port"] == server.port
    assert server.TOKEN not in agent.said()


def test_store_is_at_work_before_the_first_capture_of_a_session_that_was_seen(
    agent, jupyter
):
    jupyter()
    agent.get("/v1/sessions")

    def forks_workers():
        children = Path(f"/proc/{agent.popen.pid}/task").glob("*/children")
        pids = [pid for path in children for pid in path.read_text().split()]
        words = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
        return any(b"store.workers.fork_server" in each for each in words)

    wait_for(forks_workers)


def test_checkpoint_outlives_a_restore_that_is_killed_and_one_that_finds_it_damaged(
    agent, counter, places
):
    agent.suspend(counter, "cp")
    holding = places("hold")

    agent.restore(holding, "cp", until=lambda event: True)
    ended = agent.post(f"/v1/sessions/{holding.incarnation}/kill")

    assert ended.status_code == 204
    assert not holding.alive
    assert [one["id"] for one in agent.get("/v1/checkpoints").json()] == ["cp"]

    packs = [p for p in (agent.folder / "store").rglob("*") if p.is_file()]
    largest = max(packs, key=lambda path: path.stat().st_size)
    right = largest.read_bytes()
    # All of it: a restore need not read every file that a dump has written.
    largest.write_bytes(bytes(byte ^ 1 for byte in right))
    holding = places("hold")

    failed = agent.restore(holding, "cp")[-1]["failure"]

    assert failed["code"] == "checkpoint_damaged"
    tree = agent.tree(holding)
    assert tree["state"] == "holding"
    assert not holding.tree.processes
    assert [one["id"] for one in agent.get("/v1/checkpoints").json()] == ["cp"]
    # The same place takes it up once the store has it right again.
    largest.write_bytes(right)
    agent.come_back(holding, "cp")


@pytest.mark.shares_an_agent(False)
def test_agent_on_tcp_with_tls_answers_who_trusts_it(folder):
    pem = certificate(folder, "agent", "127.0.0.1")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    agent = Agent(folder, criu_folder())
    agent.listen = f"127.0.0.1:{port}"
    agent.start(
        f"--AgentApp.certificate={pem}", f"--AgentApp.private_key={pem}", wait=False
    )
    try:
        wait_for(lambda: connections_of(port))
        trusting = ssl.create_default_context(cafile=str(pem))
        with httpx.Client(verify=trusting, timeout=30) as client:
            answer = client.get(f"https://127.0.0.1:{port}/healthz")
            refused = client.get(f"https://127.0.0.1:{port}/v1/sessions")
        assert answer.status_code == 200
        assert refused.status_code == 401
    finally:
        agent.kill()

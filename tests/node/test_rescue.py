"""Nobody stays frozen, or asleep, where no agent comes.

Agent, CRIU and store are real. What the unit runs at its end is run here by hand.
"""

import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets import listeners
from jupyterhub_gpu_reclaim.linux import processes, ptrace
from jupyterhub_gpu_reclaim.node import state_folder
from jupyterhub_gpu_reclaim.node.app import HANDED_OVER
from tests.node.test_crash import at
from tests.node.test_nap import nap
from tests.node.test_nap import state as state_of
from tests.support import preloaded
from tests.support.agent import PATIENCE, goes_on, wait_for
from tests.support.fake_cards import computes, holders
from tests.support.long_stories import but

ROOT = Path(__file__).parents[2]


def program(agent, *words: str, **environment: str) -> int:
    """The agent's program, to its end; its exit status."""
    with agent.log.open("ab") as log:
        started = preloaded.start(
            preloaded.AGENT,
            ["jupyterhub-gpu-reclaim-agent", *words],
            log=log.fileno(),
            env={**os.environ, **environment},
            cwd=Path.cwd(),
        )
    return started.wait(PATIENCE)


def run(agent, *words: str, **environment: str) -> int:
    return program(
        agent,
        f"--AgentApp.store_url={agent.store}",
        f"--AgentApp.token_file={agent.folder}/token",
        f"--AgentApp.realm={agent.folder.name}",
        *words,
        **{state_folder.VARIABLE: f"{agent.folder}/state", **environment},
    )


def recover(agent, *words: str, **environment: str) -> int:
    return run(agent, "--recover", *words, **environment)


def stands(place) -> bool:
    return all(process.stopped for process in place.tree.processes)


def settled(agent, place) -> None:
    """The next agent takes the session for one that runs, and nothing is left."""
    agent.start()
    assert agent.tree(place)["state"] == "running"
    assert agent.get("/v1/checkpoints").json() == []
    assert goes_on(place)
    agent.captured(place, "cp-2")


STEPS = ["connections", "dump", "files", "commit"]
MOMENTS = [*((step, "begun") for step in STEPS), ("commit", "done")]
SAVED = ("commit", "done")


@pytest.mark.parametrize(("step", "state"), but(MOMENTS, ("dump", "begun"), SAVED))
def test_agent_killed_and_its_unit_ended_session_goes_on(agent, counter, step, state):
    """A checkpoint is older than what runs: a release by it would lose what came."""
    agent.capture(counter, "cp", until=at(step, state))
    agent.kill()
    assert recover(agent) == 0
    assert goes_on(counter)
    settled(agent, counter)


#: Each keeps an agent from starting.
BROKEN = [
    "--AgentApp.dump_seconds=soon",
    "--config=/nonexistent/agent.py",
    "--AgentApp.placement=nowhere",
    "--listen=192.0.2.1:8765",
]


@pytest.mark.parametrize(("step", "state"), but(MOMENTS, SAVED))
@pytest.mark.parametrize("setting", but(BROKEN, BROKEN[0]))
def test_agent_killed_and_started_with_broken_settings_session_goes_on(
    agent, counter, step, state, setting
):
    agent.capture(counter, "cp", until=at(step, state))
    agent.kill()
    assert run(agent, setting) not in {0, HANDED_OVER}
    assert goes_on(counter)
    settled(agent, counter)


def test_agent_whose_configuration_file_is_no_python_lets_go_on(agent, counter):
    agent.capture(counter, "cp")
    agent.kill()
    file = agent.folder / "agent.py"
    file.write_text("c.AgentApp.dump_seconds = = 5\n")
    assert run(agent, f"--config={file}") not in {0, HANDED_OVER}
    assert goes_on(counter)


@pytest.mark.long
def test_agent_started_with_another_placement_lets_go_on_what_it_will_not_see(
    agent, counter
):
    agent.capture(counter, "cp")
    agent.kill()
    agent.start("--AgentApp.placement=kubernetes", wait=False)
    assert goes_on(counter)
    wait_for(agent._answers, PATIENCE)
    agent.kill()
    settled(agent, counter)


def absent_store(agent) -> Path:
    return Path(agent.store)


def lost_key(agent) -> Path:
    return agent.folder / "master.key"


@pytest.mark.parametrize("thing", but([absent_store, lost_key], absent_store))
@pytest.mark.parametrize(("step", "state"), but([("dump", "begun"), SAVED], SAVED))
def test_agent_started_without_its_store_or_key_lets_go_on(
    agent, counter, monkeypatch, step, state, thing
):
    """It answers; what was not committed has gone on before, the rest soon after."""
    agent.capture(counter, "cp", until=at(step, state))
    agent.kill()
    path = thing(agent)
    away = path.with_name("away")
    path.rename(away)
    monkeypatch.setattr(agent, "program", "tests.support.altered_agents:impatient")
    agent.start(wait=False)
    assert goes_on(counter)
    wait_for(agent._answers, PATIENCE)
    wait_for(lambda: agent.tree(counter)["state"] == "running", PATIENCE)
    if path.exists():
        shutil.rmtree(path)
    away.rename(path)
    wait_for(lambda: agent.get("/v1/checkpoints").json() == [], PATIENCE)
    wait_for(lambda: not agent.tree(counter)["operation"], PATIENCE)
    agent.kill()
    settled(agent, counter)


def test_agent_that_runs_is_left_alone(agent, counter):
    agent.capture(counter, "cp")
    assert recover(agent) == 0
    assert stands(counter)
    assert agent.tree(counter)["state"] == "captured"


def test_agent_that_is_followed_at_once_leaves_what_is_committed_to_the_next(
    agent, counter
):
    """systemd ends it with SIGINT where it starts another one (RestartKillSignal)."""
    agent.capture(counter, "cp")
    agent.popen.send_signal(signal.SIGINT)
    assert agent.popen.wait(PATIENCE) == HANDED_OVER
    assert recover(agent, EXIT_CODE="exited", EXIT_STATUS=str(HANDED_OVER)) == 0
    assert stands(counter)
    agent.start()
    assert agent.tree(counter)["state"] == "captured"

    assert agent.terminate() == 0
    assert recover(agent, EXIT_CODE="exited", EXIT_STATUS="0") == 0
    assert goes_on(counter)
    settled(agent, counter)


@pytest.fixture
def pair(places):
    """A server that listens, and a child of it that counts."""
    program = """
import os, socket, time
listener = socket.create_server(("127.0.0.1", 0))
os.write(1, b"%d " % listener.getsockname()[1])
if os.fork() == 0:
    while True:
        os.write(1, b".")
        time.sleep(0.05)
time.sleep(3000)
"""
    place = places("start", sys.executable, "-I", "-S", "-c", program, env={})
    wait_for(lambda: "." in place.output.read_text())
    return place


def test_what_a_capture_has_begun_with_is_undone(agent, pair):
    """It stops what talks to the server, and makes the server deaf; that one runs."""
    child = pair.tree.processes[-1]
    address = ("127.0.0.1", int(pair.output.read_text().split()[0]))
    deaf = listeners.deaf(pair.tree.init.pid, pair.tree.server)
    agent.capture(pair, "cp", until=at("connections", "begun"))
    agent.popen.send_signal(signal.SIGSTOP)
    deaf.__enter__()
    processes.send(child, signal.SIGSTOP)
    agent.kill()
    assert recover(agent) == 0
    assert goes_on(pair)
    socket.create_connection(address, timeout=20).close()


@pytest.mark.parametrize("end", [recover, lambda agent: agent.start()])
def test_program_that_a_killed_agent_made_call_has_its_registers_again(
    agent, counter, end
):
    """The kernel leaves it with ours, stopped: it would end as soon as it goes on."""
    agent.capture(counter, "cp", until=at("files", "begun"))
    agent.kill()
    assert stands(counter)
    if (tracer := os.fork()) == 0:
        ptrace.kept.use(agent.folder / "state" / state_folder.HELD)
        with ptrace.stopped(counter.tree.root.pid) as traced:
            traced.call("prctl", 3, 0, 0, 0, 0)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(tracer, 0)
    end(agent)
    assert goes_on(counter)


def test_unit_runs_what_lets_go_on_and_says_when_another_agent_follows():
    unit = ROOT / "etc/systemd/jupyterhub-gpu-reclaim-agent.service"
    lines = unit.read_text().splitlines()
    assert "ExecStopPost=/usr/bin/env jupyterhub-gpu-reclaim-agent --recover" in lines
    assert "RestartKillSignal=SIGINT" in lines
    assert f"SuccessExitStatus={HANDED_OVER}" in lines
    assert "KillMode=process" in lines  # a CRIU goes on


# --- naps


def record_of(agent, place) -> Path:
    return agent.folder / "state" / "records" / f"{place.incarnation}.json"


@pytest.mark.parametrize("end", [recover, lambda agent: run(agent, BROKEN[0])])
@pytest.mark.parametrize("stage", but(["asleep", "falling", "waking"], "asleep"))
def test_session_that_naps_is_woken(driver, agent, start, stage, end):
    place = start()
    computes(place)
    nap(agent, place)
    agent.kill()
    record = record_of(agent, place)
    text = record.read_bytes().replace(b'"asleep"', b'"%s"' % stage.encode())
    record.write_bytes(text)
    end(agent)
    computes(place)
    assert holders(place) == 1
    agent.start()
    assert state_of(agent, place) == "running"


def test_captured_session_that_napped_is_woken(driver, agent, start):
    place = start()
    computes(place)
    nap(agent, place)
    agent.captured(place, "cp")
    agent.kill()
    assert recover(agent) == 0
    computes(place)
    agent.start()
    assert state_of(agent, place) == "running"
    assert agent.get("/v1/checkpoints").json() == []


# --- the state folder


def test_lock_is_free_after_the_holder_only(tmp_path):
    with state_folder.lock(tmp_path) as first, state_folder.lock(tmp_path) as second:
        assert (first, second) == (True, False)
    with state_folder.lock(tmp_path) as again:
        assert again


def test_folder_in_which_no_agent_has_worked_is_left_alone(agent, tmp_path):
    begun = time.monotonic()
    assert recover(agent, **{state_folder.VARIABLE: f"{tmp_path}/none"}) == 0
    assert time.monotonic() - begun < PATIENCE
    assert not (tmp_path / "none").exists()

"""Naps through the real agent; card and driver are false.

The program ends when it runs while its card is away, so each of these tests also shows
that it does not.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from websockets.sync.client import connect

from jupyterhub_gpu_reclaim.linux import processes, ptrace
from tests.node.test_undo import fill, full_disk
from tests.support.agent import in_step, running_agent, wait_for
from tests.support.fake_cards import (
    FAKE,
    computes,
    holders,
    killed_while_it_moves,
    take_card,
)
from tests.support.long_stories import but

pytestmark = pytest.mark.shares_an_agent(card=True)

#: Of tests whose agent is started in another way.
own_agent = pytest.mark.shares_an_agent(False)


@pytest.fixture
def session(start):
    place = start()
    computes(place)
    return place


def order(agent, place, name: str, until=None) -> list[dict]:
    return agent.events(f"/v1/sessions/{place.incarnation}/{name}", {}, until)


def nap(agent, place) -> dict:
    return order(agent, place, "nap")[-1]


def wake(agent, place) -> dict:
    return order(agent, place, "wake")[-1]


def state(agent, place) -> str:
    return agent.tree(place)["state"]


def program(place):
    return place.tree.server


def naps(place) -> bool:
    """The program stands without a card, and its child computes."""
    computes(place, "c")
    return processes.is_stopped(program(place)) and not holders(place)


def test_session_naps_and_wakes_and_the_rest_of_it_runs_on(agent, session):
    events = order(agent, session, "nap")
    assert events[-1]["tree"]["state"] == "napping"
    steps = {e["step"]["step"] for e in events if e.get("step")}
    assert steps == {"preflight", "gpu"}
    assert naps(session)
    assert state(agent, session) == "napping"

    assert wake(agent, session)["tree"]["state"] == "running"
    computes(session)
    assert holders(session) == 1  # the child has no use for it


def test_agent_that_ends_waits_for_nobody_who_follows_a_wake(agent, session):
    nap(agent, session)
    request = (
        f"POST /v1/sessions/{session.incarnation}/next-wake HTTP/1.1\r\n"
        "Content-Length: 0\r\n"
        f"Host: agent\r\nAuthorization: Bearer {agent.token}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as reader:
        reader.connect(agent.listen.removeprefix("unix:"))
        reader.sendall(request.encode())
        assert state(agent, session) == "napping"  # it has been read by then
        begun = time.monotonic()
        agent.terminate()
        assert time.monotonic() - begun < 30
        assert reader.recv(1) == b""
    agent.start()
    assert state(agent, session) == "napping"


@pytest.mark.parametrize("step", ["preflight", "gpu"])
def test_nap_that_is_called_off_ends_as_a_whole(agent, session, step):
    order(agent, session, "nap", until=in_step(step, lambda: agent.cancel(session)))
    wait_for(lambda: not agent.tree(session)["operation"])
    if state(agent, session) == "napping":  # it had been done already
        assert naps(session)
        wake(agent, session)
    computes(session)
    assert stage_of(agent, session) == ""


def record_of(agent, place) -> Path:
    return agent.folder / "state" / "records" / f"{place.incarnation}.json"


def stage_of(agent, place) -> str:
    """The recorded stage of the nap; empty where there is none."""
    if not (record := record_of(agent, place)).exists():
        return ""
    return (json.loads(record.read_bytes()).get("nap") or {}).get("stage", "")


def test_agent_that_is_started_again_holds_the_nap(agent, session):
    nap(agent, session)
    agent.kill()
    assert stage_of(agent, session) == "asleep"
    agent.start()
    assert state(agent, session) == "napping"
    assert naps(session)
    wake(agent, session)
    computes(session)
    assert stage_of(agent, session) == ""


@pytest.mark.parametrize("name", ["nap", "wake"])
@pytest.mark.parametrize("begun", but(["preflight", "gpu"], "gpu"))
def test_agent_killed_on_the_way_the_next_one_wakes_or_holds(agent, start, name, begun):
    # A child that just gives up its devices may end with the agent (linux/ptrace).
    session = start("alone")
    computes(session, "p")
    if name == "wake":
        nap(agent, session)

    order(agent, session, name, until=in_step(begun, agent.kill))
    agent.kill()
    agent.start()
    wait_for(lambda: not agent.tree(session)["operation"])
    if stage_of(agent, session) == "asleep":
        assert not holders(session)
        wake(agent, session)
    wait_for(lambda: state(agent, session) == "running")
    computes(session, "p")


# While it moves out, an agent of ``test_gpu_session`` is killed.
@pytest.mark.parametrize(
    ("name", "moving"), but([("nap", "2"), ("wake", "1")], ("wake", "1"))
)
def test_agent_killed_while_memory_moves_lets_no_program_run_without_it(
    agent, driver, start, name, moving
):
    session = start("large")
    computes(session)
    if name == "wake":
        nap(agent, session)
    killed_while_it_moves(agent, driver, moving, lambda: order(agent, session, name))
    assert session.alive
    agent.start()
    wait_for(lambda: state(agent, session) == "running")
    computes(session)
    assert holders(session) == 1


@pytest.mark.parametrize("stage", ["falling", "waking"])
def test_nap_that_was_left_half_done_is_ended_by_the_next_agent(agent, session, stage):
    nap(agent, session)
    agent.kill()
    record = record_of(agent, session)
    text = record.read_bytes().replace(b'"asleep"', b'"%s"' % stage.encode())
    record.write_bytes(text)
    agent.start()
    wait_for(lambda: state(agent, session) == "running")
    computes(session)


def test_session_that_ends_while_it_naps_is_gone(agent, session):
    nap(agent, session)
    os.kill(program(session).pid, signal.SIGKILL)
    wait_for(lambda: agent.tree(session).get("status") == 404)
    assert agent.get("/v1/sessions").json() == []
    assert not list((agent.folder / "state" / "records").glob("*"))


def test_program_that_a_debugger_holds_wakes_when_it_is_let_go(agent, session):
    nap(agent, session)
    with ptrace.standing(program(session).pid, but=set(), seconds=5):
        wait_for(lambda: "is not woken yet" in agent.said())
    wait_for(lambda: state(agent, session) == "running")
    computes(session)


def test_capture_that_an_agent_died_in_ends_in_the_nap_that_it_began_in(agent, session):
    nap(agent, session)

    agent.capture(session, "cp", until=in_step("dump", agent.kill))
    agent.start()
    if agent.get("/v1/checkpoints").json():
        agent.post(f"/v1/sessions/{session.incarnation}/thaw")
    wait_for(lambda: state(agent, session) == "napping")
    assert naps(session)
    wake(agent, session)
    computes(session)


@own_agent
def test_full_state_folder_refuses_a_nap_and_ends_one(folder, driver, device, places):
    with full_disk(folder / "state"):
        agent = running_agent(folder)
        command = [sys.executable, "-I", "-S", str(FAKE / "user.py")]
        session = places("start", *command, str(driver), str(device), env={})
        computes(session)
        nap(agent, session)
        fill(agent.folder / "state")
        assert wake(agent, session)["tree"]["state"] == "running"
        computes(session)
        # The next one would have to be found by an agent that knows nothing of it.
        assert nap(agent, session)["failure"]["code"] == "state_full"
        computes(session)
        assert state(agent, session) == "running"
        agent.kill()


@pytest.mark.long
def test_program_that_takes_a_card_beside_a_nap_is_captured_and_filled_alone(
    agent, session, driver, device, jupyter, places
):
    """The one that naps goes on napping; both come back with their memory."""
    agent.post(f"/v1/sessions/{session.incarnation}/kill")
    server = jupyter()
    first, second = server.start_kernel("a.ipynb"), server.start_kernel("b.ipynb")
    take_card(server, first, driver, device)
    with server.channel(first, "page") as page:
        server.execute(page, "page", "1")
        wait_for(lambda: "idle" in page.recv(30))
        assert nap(agent, server.place)["tree"]
        # Unread, and saved as such.
        header = {"msg_id": "1", "msg_type": "kernel_info_request", "session": "page"}
        empty = {"parent_header": {}, "metadata": {}, "content": {}, "buffers": []}
        page.send(json.dumps({"channel": "shell", "header": header, **empty}))
    take_card(server, second, driver, device)
    assert state(agent, server.place) == "napping"

    agent.captured(server.place, "cp")
    agent.post(f"/v1/sessions/{server.place.incarnation}/thaw")
    assert server.run(second, "has_card()") == "True"
    assert state(agent, server.place) == "napping"

    agent.suspend(server.place, "cp-2")
    agent.come_back(places("hold"), "cp-2")
    for kernel in (first, second):
        assert server.run(kernel, "has_card()") == "True"


def test_key_in_the_terminal_of_a_program_wakes_it_and_its_shell(
    agent, session, driver, device, jupyter
):
    agent.post(f"/v1/sessions/{session.incarnation}/kill")
    server = jupyter()
    name = server.client.post("api/terminals").json()["name"]
    url = server.url.replace("http", "ws") + f"terminals/websocket/{name}"
    headers = {"Authorization": f"token {server.TOKEN}"}
    command = f"{sys.executable} -ISu {FAKE / 'user.py'} {driver} {device}"
    with connect(url, additional_headers=headers) as terminal:
        terminal.send(json.dumps(["stdin", f"{command}\r"]))
        wait_for(lambda: holders(server.place) == 2)
        wait_for(lambda: any(driver.iterdir()))
        assert nap(agent, server.place)["tree"]
        stopped = {p.name for p in server.place.tree.processes if p.stopped}
        assert len(stopped) == 2
        assert processes.is_stopped(server.place.tree.server) is False
        terminal.send(json.dumps(["stdin", "\r"]))
        wait_for(lambda: state(agent, server.place) == "running")
        assert "is woken by keys in its terminal" in agent.said()
        assert not any(p.stopped for p in server.place.tree.processes)

        assert nap(agent, server.place)["tree"]
        terminal.send(json.dumps(["stdin", "\x03"]))
        wait_for(lambda: "KeyboardInterrupt" in terminal.recv(30))
        terminal.send(json.dumps(["stdin", "echo a$((1 + 1))b\r"]))
        wait_for(lambda: "a2b" in terminal.recv(30))
    assert "is woken by SIGINT" in agent.said()

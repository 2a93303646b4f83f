"""Naps through the real agent; card and driver are false.

The program ends when it runs while its card is away, so each of these tests also shows
that it does not.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time

import pytest
from websockets.sync.client import connect

from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import CudaState
from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import GpuUser, Survey
from jupyterhub_gpu_reclaim.cli.main import main
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RolledBack
from jupyterhub_gpu_reclaim.common.models import (
    CardShortage,
    Event,
    Failure,
    GpuSample,
    Shortage,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.node_status import NodeStatus
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, procfs, ptrace
from jupyterhub_gpu_reclaim.node.local_node import LocalNode
from jupyterhub_gpu_reclaim.node.nap import wakers as wakers_module
from jupyterhub_gpu_reclaim.node.nap.inputs import ENDED
from jupyterhub_gpu_reclaim.node.nap.wakers import Wakers
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.node.operations.host_memory import HostMemory
from jupyterhub_gpu_reclaim.node.operations.known_term import KnownTerm
from jupyterhub_gpu_reclaim.node.operations.operations import Operation
from jupyterhub_gpu_reclaim.node.operations.records import NapStage
from jupyterhub_gpu_reclaim.node.operations.store_room import StoreRoom
from jupyterhub_gpu_reclaim.node.requirements import GpuCard, Gpus, GpuUse
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows import capture
from jupyterhub_gpu_reclaim.node.workflows import nap as workflow
from jupyterhub_gpu_reclaim.node.workflows.outcomes import Outcomes
from jupyterhub_gpu_reclaim.node.workflows.tools import WorkflowTools
from jupyterhub_gpu_reclaim.sampling import jupyter_api
from jupyterhub_gpu_reclaim.sampling.gpu import CardUse, ProcessUse
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from tests.node.test_undo import fill, full_disk
from tests.support import gpu
from tests.support.agent import goes_on, running_agent, wait_for
from tests.support.fake_cards import (
    FAKE,
    computes,
    holders,
    killed_while_it_moves,
    take_card,
)

pytestmark = pytest.mark.usefixtures("driver")


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
    """The one that uses the card."""
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
        f"GET /v1/sessions/{session.incarnation}/next-wake HTTP/1.1\r\n"
        f"Host: agent\r\nAuthorization: Bearer {agent.token}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as reader:
        reader.connect(agent.listen.removeprefix("unix:"))
        reader.sendall(request.encode())
        assert state(agent, session) == "napping"  # it has been read by then
        begun = time.monotonic()
        agent.terminate()
        assert time.monotonic() - begun < 8
        assert reader.recv(1) == b""
    agent.start()
    assert state(agent, session) == "napping"


def test_orders_that_are_repeated_find_it_done(agent, session):
    assert wake(agent, session)["tree"]["state"] == "running"
    nap(agent, session)
    assert nap(agent, session)["tree"]["state"] == "napping"
    assert naps(session)
    for _ in range(3):
        wake(agent, session)
        computes(session)
        nap(agent, session)
    assert naps(session)


def test_session_without_a_gpu_does_not_nap(agent, counter):
    failure = nap(agent, counter)["failure"]
    assert failure["code"] == "gpu_unused"


def test_what_the_driver_cannot_move_out_goes_on_running(agent, session, monkeypatch):
    agent.kill()
    monkeypatch.setenv("FAKE_CUDA_REFUSAL", "801")
    agent.start()
    assert nap(agent, session)["failure"]["code"] == "gpu_unsupported"
    computes(session)
    assert state(agent, session) == "running"


def test_suspend_from_a_nap_comes_back_awake_in_another_place(agent, session, places):
    nap(agent, session)
    assert agent.capture(session, "cp")[-1]["checkpoint"]
    path = f"/v1/sessions/{session.incarnation}/release"
    assert agent.post(path, {"checkpoint": "cp"}).json()["state"] == "gone"

    place = places("hold")
    assert agent.restore(place, "cp")[-1]["tree"]["state"] == "running"
    computes(place)
    assert holders(place) == 1
    assert nap(agent, place)["tree"]["origin"] == "cp"
    assert naps(place)


def test_suspend_that_is_taken_back_ends_in_the_nap_that_it_began_in(agent, session):
    nap(agent, session)
    assert agent.capture(session, "cp")[-1]["checkpoint"]
    assert state(agent, session) == "captured"
    path = f"/v1/sessions/{session.incarnation}/thaw"
    assert agent.post(path).json()["state"] == "napping"
    assert naps(session)
    assert agent.get("/v1/checkpoints").json() == []
    wake(agent, session)
    computes(session)


def test_suspend_that_is_called_off_ends_in_the_nap_that_it_began_in(agent, session):
    nap(agent, session)

    def call_off(event) -> bool:
        if (event.get("step") or {}).get("step") == "dump":
            agent.post(f"/v1/sessions/{session.incarnation}/cancel")
            return True
        return False

    agent.capture(session, "cp", until=call_off)
    wait_for(lambda: state(agent, session) == "napping")
    assert naps(session)
    wake(agent, session)
    computes(session)


@pytest.mark.parametrize("step", ["preflight", "gpu"])
def test_nap_that_is_called_off_ends_as_a_whole(agent, session, step):
    def call_off(event) -> bool:
        if (event.get("step") or {}).get("step") == step:
            assert agent.post(f"/v1/sessions/{session.incarnation}/cancel").is_success
            return True
        return False

    order(agent, session, "nap", until=call_off)
    wait_for(lambda: not agent.tree(session)["operation"])
    if state(agent, session) == "napping":  # it had been done already
        assert naps(session)
        wake(agent, session)
    computes(session)
    assert stage_of(agent) == ""


def test_napping_session_is_killed(agent, session):
    nap(agent, session)
    path = f"/v1/sessions/{session.incarnation}/kill"
    assert agent.post(path).json()["state"] == "gone"
    assert not session.alive


def stage_of(agent) -> str:
    """The recorded stage of the nap; empty where there is none."""
    for record in (agent.folder / "state" / "records").glob("*.json"):
        return (json.loads(record.read_bytes()).get("nap") or {}).get("stage", "")
    return ""


def test_agent_that_is_started_again_holds_the_nap(agent, session):
    nap(agent, session)
    agent.kill()
    assert stage_of(agent) == "asleep"
    agent.start()
    assert state(agent, session) == "napping"
    assert naps(session)
    wake(agent, session)
    computes(session)
    assert stage_of(agent) == ""


@pytest.mark.parametrize("name", ["nap", "wake"])
@pytest.mark.parametrize("begun", ["preflight", "gpu"])
def test_agent_killed_on_the_way_the_next_one_wakes_or_holds(agent, start, name, begun):
    # A child that just gives up its devices may end with the agent (linux/ptrace).
    session = start("alone")
    computes(session, "p")
    if name == "wake":
        nap(agent, session)

    def kill(event) -> bool:
        if (event.get("step") or {}).get("step") == begun:
            agent.kill()
            return True
        return False

    order(agent, session, name, until=kill)
    agent.kill()
    agent.start()
    wait_for(lambda: not agent.tree(session)["operation"])
    if stage_of(agent) == "asleep":
        assert not holders(session)
        wake(agent, session)
    wait_for(lambda: state(agent, session) == "running")
    computes(session, "p")


@pytest.mark.parametrize(("name", "moving"), [("nap", "2"), ("wake", "1")])
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
    (record,) = (agent.folder / "state" / "records").glob("*.json")
    text = record.read_bytes().replace(b'"asleep"', b'"%s"' % stage.encode())
    record.write_bytes(text)
    agent.start()
    wait_for(lambda: state(agent, session) == "running")
    computes(session)


def test_session_that_ends_while_it_naps_is_gone(agent, session):
    nap(agent, session)
    os.kill(program(session).pid, signal.SIGKILL)
    wait_for(lambda: state(agent, session) == "gone")
    agent.kill()
    agent.start()
    assert agent.tree(session)["status"] == 404


def test_program_that_a_debugger_holds_wakes_when_it_is_let_go(agent, session):
    nap(agent, session)
    with ptrace.standing(program(session).pid, but=set(), seconds=5):
        wait_for(lambda: "is not woken yet" in agent.log.read_text())
    wait_for(lambda: state(agent, session) == "running")
    computes(session)


def test_capture_that_an_agent_died_in_ends_in_the_nap_that_it_began_in(agent, session):
    nap(agent, session)

    def kill(event) -> bool:
        if (event.get("step") or {}).get("step") == "dump":
            agent.kill()
            return True
        return False

    agent.capture(session, "cp", until=kill)
    agent.start()
    if agent.get("/v1/checkpoints").json():
        agent.post(f"/v1/sessions/{session.incarnation}/thaw")
    wait_for(lambda: state(agent, session) == "napping")
    assert naps(session)
    wake(agent, session)
    computes(session)


@pytest.mark.long
def test_session_whose_agent_never_returns_is_woken(agent, session):
    agent.kill()
    agent.start("--AgentApp.thaw_after_seconds=1")
    nap(agent, session)
    agent.kill()
    computes(session)
    agent.start()
    assert state(agent, session) == "running"


def test_captured_session_whose_agent_never_returns_is_woken(agent, session):
    agent.kill()
    agent.start("--AgentApp.thaw_after_seconds=1")
    nap(agent, session)
    assert agent.capture(session, "cp")[-1]["checkpoint"]
    agent.kill()
    computes(session)
    agent.start()
    assert state(agent, session) == "running"
    assert agent.get("/v1/checkpoints").json() == []


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

    assert agent.capture(server.place, "cp")[-1].get("checkpoint")
    agent.post(f"/v1/sessions/{server.place.incarnation}/thaw")
    assert server.run(second, "has_card()") == "True"
    assert state(agent, server.place) == "napping"

    assert agent.capture(server.place, "cp-2")[-1].get("checkpoint")
    path = f"/v1/sessions/{server.place.incarnation}/release"
    assert agent.post(path, {"checkpoint": "cp-2"}).json()["state"] == "gone"
    place = places("hold")
    assert agent.restore(place, "cp-2")[-1]["tree"]["state"] == "running"
    for kernel in (first, second):
        assert server.run(kernel, "has_card()") == "True"


@pytest.mark.long
def test_program_that_only_asks_how_the_gpu_is_runs_on(
    agent, session, driver, device, jupyter
):
    """A server that shows it, for one: it would take the page with it."""
    agent.post(f"/v1/sessions/{session.incarnation}/kill")
    server = jupyter()
    first, second = server.start_kernel("a.ipynb"), server.start_kernel("b.ipynb")
    take_card(server, first, driver, device)
    asks = f"""import os, pathlib
held = os.open("{device}", os.O_RDWR)
pathlib.Path("{driver}", str(os.getpid())).write_text("0 0")"""
    server.run(second, asks)
    assert nap(agent, server.place).get("tree")
    assert server.run(second, "20 + 3") == "23"
    assert state(agent, server.place) == "napping"
    wake(agent, server.place)
    assert server.run(first, "has_card()") == "True"


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
        assert "is woken by keys in its terminal" in agent.log.read_text()
        assert not any(p.stopped for p in server.place.tree.processes)

        assert nap(agent, server.place)["tree"]
        terminal.send(json.dumps(["stdin", "\x03"]))
        wait_for(lambda: "KeyboardInterrupt" in terminal.recv(30))
        terminal.send(json.dumps(["stdin", "echo a$((1 + 1))b\r"]))
        wait_for(lambda: "a2b" in terminal.recv(30))
    assert "is woken by SIGINT" in agent.log.read_text()


async def test_service_is_told_of_a_nap_and_of_what_it_moved(agent, session):
    nap(agent, session)
    client = AgentClient(agent.listen, agent.token)
    try:
        (tree,) = await client.trees()
        assert (tree.state, tree.runs) == (TreeState.NAPPING, True)
        assert tree.nap.begun <= time.time()
        assert await client.tree(session.incarnation) == tree
        (sample,) = await client.samples()
        assert sample.incarnation == session.incarnation
    finally:
        client.close()
    assert state(agent, session) == "napping"


def test_checkpoint_of_a_nap_stands_a_drill(agent, session):
    nap(agent, session)
    assert agent.capture(session, "cp")[-1]["checkpoint"]
    agent.post(f"/v1/sessions/{session.incarnation}/release", {"checkpoint": "cp"})
    key = agent.folder / "master.key"
    places = [f"--store={agent.store}", f"--key-file={key}", f"--criu-dir={agent.criu}"]
    assert main(["store", "drill", "cp", *places]) == 0


class FullCards:
    """The session's program has a card; nothing more is known, and nothing is done.

    Its memory has no room: neither on the machine, nor, until ``free``, on the card.
    """

    free = False

    def __init__(self, process: processes.Process, count: int) -> None:
        self._process, self._count = process, count

    def survey(self, snapshot) -> Survey:
        return Survey(users=(GpuUser(self._process, CudaState.RUNNING),))

    def findings(self, survey, snapshot) -> list:
        return []

    def without_memory(self, survey) -> list[processes.Process]:
        return []

    def to_stop(self, survey, snapshot) -> list[processes.Process]:
        return [self._process]

    def describe(self, survey) -> Gpus:
        pid = self._process.ns_pid
        return Gpus(
            driver="580",
            cards=[GpuCard(uuid="a" * 32, name="Card")],
            users=[pid],
            uses=[GpuUse(pid=pid, uuid="a" * 32, bytes=self._count)],
        )

    def empty(self, look, survey, limit, cancel, standing) -> None:
        standing()
        processes.send(self._process, signal.SIGSTOP)

    room_seconds = 0.0

    def claim(self, gpus, snapshot, claim, waker) -> Shortage | None:
        if self.free:
            return None
        card = CardShortage(uuid="a" * 32, name="Card", needed=1 << 30, free=0)
        return Shortage(waited=0.0, place=1, cards=[card])

    def release(self, claim) -> None:
        pass

    def fill(self, gpus, limit, snapshot, cancel, claim) -> None:
        if not self.free:
            raise ReclaimError(
                Reason.GPU_MEMORY, card="Card", needed="1 GiB", free="0 B"
            )


def tools_of(recovery, cards, client=None) -> WorkflowTools:
    releases = recovery.releases
    return WorkflowTools(
        records=releases.records,
        store=releases.store,
        criu=None,
        client=client,
        clock=releases.clock,
        limits=releases.limits,
        work=None,
        accelerator=cards,
        memory=HostMemory(),
        store_room=StoreRoom(releases.store.free_bytes),
        ports=releases.ports,
    )


async def run(recovery, place, cards, kind: str, client=None) -> ReclaimError | None:
    """A nap or a wake of a real session, with those cards; its error."""
    tools = tools_of(recovery, cards, client)
    session = recovery.placements.find(place.incarnation)
    operation = Operation(kind, session.key, "")
    work = (
        workflow.Nap(tools, session, operation)
        if kind == "nap"
        else workflow.Wake(tools, session, operation, "")
    )
    recovery.operations.begin(place.incarnation, operation, work.run)
    await operation.wait()
    return operation.error


async def test_nap_that_the_machine_has_no_memory_for_is_refused_untouched(
    recovery, counter
):
    cards = FullCards(counter.tree.server, 1 << 60)
    error = await run(recovery, counter, cards, "nap")
    assert error.reason is Reason.NOT_ENOUGH_MEMORY
    assert recovery.releases.records.list() == []
    assert goes_on(counter)


async def test_tree_tells_what_its_nap_has_moved_out_of_which_card(recovery, counter):
    assert (
        await run(recovery, counter, FullCards(counter.tree.server, 7), "nap") is None
    )
    session = recovery.placements.find(counter.incarnation)
    record = trees.record_of(recovery.releases.records, session)
    nap = trees.tree_of(session, record, None).nap
    assert nap.gpus == [GpuSample(uuid="a" * 32, name="Card", memory=7)]
    assert (nap.bytes, nap.begun) == (7, record.nap.begun)


async def test_wake_that_finds_the_card_full_naps_on_and_is_made_up_for(
    recovery, counter
):
    cards = FullCards(counter.tree.server, 1)
    assert await run(recovery, counter, cards, "nap") is None
    records = recovery.releases.records
    assert records.find(counter.incarnation).nap.stage is NapStage.ASLEEP
    error = await run(recovery, counter, cards, "wake")
    assert error.reason is Reason.GPU_MEMORY
    assert processes.is_stopped(counter.tree.server)
    assert records.find(counter.incarnation).naps

    cards.free = True
    assert await run(recovery, counter, cards, "wake") is None
    assert records.find(counter.incarnation).nap is None
    assert goes_on(counter)


class CrowdedCard(gpu.WellDriver):
    """One card, of which others have so much; says what it has."""

    taken = 0

    def measure(self, since: float) -> list[CardUse]:
        use = [ProcessUse(pid=1, memory=self.taken)]
        card = CardUse(
            uuid=gpu.CARD.uuid, name="H", free=100 - self.taken, processes=use
        )
        return [card]


async def waker_of(recovery, place, monkeypatch):
    """A wake of a nap that had 60 of the 100 bytes of a card; and that card."""
    card = CrowdedCard(place.tree.server.pid)
    monkeypatch.setattr(workflow, "ROOM_PAUSE", 0.01)
    cards = FullCards(place.tree.server, 60)
    assert await run(recovery, place, cards, "nap") is None
    record = recovery.releases.records.find(place.incarnation)
    there = Gpus(
        driver="580",
        cards=[GpuCard(uuid=gpu.CARD.uuid, name=gpu.CARD.name)],
        users=record.nap.gpus.users,
        uses=[GpuUse(pid=record.nap.gpus.users[0], uuid=gpu.CARD.uuid, bytes=60)],
    )
    nap = record.nap_at(NapStage.ASLEEP, gpus=there)
    recovery.releases.records.save(nap)
    accelerator = Accelerator(card, card, lock_seconds=1, seconds=9, room_seconds=0.1)
    return card, accelerator


async def test_wake_that_waits_says_so_and_goes_on_as_soon_as_there_is_room(
    recovery, counter, monkeypatch
):
    card, accelerator = await waker_of(recovery, counter, monkeypatch)
    card.taken = 50
    first = await run(recovery, counter, accelerator, "wake")
    assert first.reason is Reason.GPU_MEMORY
    short = accelerator.shortage_of(counter.incarnation)
    assert (short.place, short.cards[0].needed, short.cards[0].free) == (1, 60, 50)

    waiting = asyncio.ensure_future(run(recovery, counter, accelerator, "wake"))
    operation = await recovery.operations.next(counter.incarnation, "wake", 5)
    async for event in operation.follow():
        if event.step.step == "room":
            break
    assert event.step.title == "Waiting for a GPU"
    assert accelerator.shortage_of(counter.incarnation).waited > short.waited
    card.taken = 40
    assert await waiting is None
    assert [step.state for step in operation.steps] == ["done", "done"]
    assert accelerator.shortage_of(counter.incarnation) is None
    assert goes_on(counter)


async def test_wake_that_is_called_off_while_it_waits_gives_its_turn_up(
    recovery, counter, monkeypatch
):
    card, accelerator = await waker_of(recovery, counter, monkeypatch)
    card.taken, accelerator.room_seconds = 100, 60
    waiting = asyncio.ensure_future(run(recovery, counter, accelerator, "wake"))
    operation = await recovery.operations.next(counter.incarnation, "wake", 5)
    while accelerator.shortage_of(counter.incarnation) is None:
        await asyncio.sleep(0.01)
    operation.cancel.set()
    assert (await waiting).reason is Reason.CANCELLED
    assert accelerator.shortage_of(counter.incarnation) is None
    assert recovery.releases.records.find(counter.incarnation).naps


async def test_suspend_calls_off_a_wake_that_waits_for_room(
    recovery, counter, monkeypatch
):
    card, accelerator = await waker_of(recovery, counter, monkeypatch)
    card.taken, accelerator.room_seconds = 100, 60
    waiting = asyncio.ensure_future(run(recovery, counter, accelerator, "wake"))
    while accelerator.shortage_of(counter.incarnation) is None:
        await asyncio.sleep(0.01)
    releases = recovery.releases
    node = LocalNode(
        placements=recovery.placements,
        operations=recovery.operations,
        sampler=None,
        tools=tools_of(recovery, accelerator),
        releases=releases,
        recovery=recovery,
        outcomes=Outcomes(
            placements=recovery.placements,
            records=releases.records,
            store=releases.store,
        ),
        presence=None,
        look=list,
        term=KnownTerm(SystemClock()),
        describe=lambda: NodeStatus(host="here", version="1"),
    )
    assert (await node.tree(counter.incarnation)).shortage.place == 1

    class Begun:
        """A capture that fails at once."""

        def __init__(self, *_) -> None:
            pass

        async def run(self, operation):
            yield Event(failure=Failure(code="io_uring", message="No."))

    monkeypatch.setattr(capture, "Capture", Begun)
    events = [e async for e in await node.capture(counter.incarnation, "cp", 1)]
    assert events[-1].failure.code == "io_uring"
    assert (await waiting).reason is Reason.CANCELLED
    tree = await node.tree(counter.incarnation)
    assert (tree.state, tree.shortage) == (TreeState.NAPPING, None)


async def test_nap_that_fails_while_the_card_is_taken_is_ended_later(
    recovery, counter, monkeypatch
):
    cards = FullCards(counter.tree.server, 1)

    def empty(*_) -> None:
        FullCards.empty(cards, *_)
        raise RolledBack(Reason.CAPTURE_FAILED, why="the card is gone")

    monkeypatch.setattr(cards, "empty", empty)
    error = await run(recovery, counter, cards, "nap")
    assert error.reason is Reason.GPU_MEMORY
    records = recovery.releases.records
    assert records.find(counter.incarnation).naps

    tries = 0

    async def order(incarnation: str, why: str, program: int | None) -> None:
        nonlocal tries
        tries += 1
        cards.free = tries > 2
        if failure := await run(recovery, counter, cards, "wake"):
            raise failure

    monkeypatch.setattr(wakers_module, "_FIRST_PAUSE", 0.05)
    wakers = Wakers(recovery.placements, records, recovery.operations, order)
    wakers.begin()
    async with asyncio.timeout(10):
        while records.find(counter.incarnation).naps:
            await asyncio.sleep(0.02)
    wakers.close()
    assert tries == 3
    assert goes_on(counter)


@pytest.mark.long
async def test_cell_that_a_kernel_has_taken_in_before_it_was_stopped_ends_the_nap(
    recovery, jupyter
):
    """It lies in the kernel's own memory; no look at connections finds it."""
    server = await asyncio.to_thread(jupyter)
    kernel = await asyncio.to_thread(server.start_kernel)
    (process,) = (p for p in server.place.tree.processes if is_kernel(p, kernel))

    class LastMoment(FullCards):
        def empty(self, look, survey, limit, cancel, standing) -> None:
            standing()
            server.run(kernel, "import time; time.sleep(60)", wait=False)
            wait_for(lambda: server.kernels()[0]["execution_state"] == "busy")
            processes.send(process, signal.SIGSTOP)

    client = jupyter_api.make_client()
    cards = LastMoment(process, 1)
    assert await run(recovery, server.place, cards, "nap", client) is None
    record = recovery.releases.records.find(server.place.incarnation)
    assert record.nap.stage is NapStage.WAKING
    client.close()


def is_kernel(process: processes.Process, kernel: str) -> bool:
    return any(kernel.encode() in word for word in procfs.words(process.pid, "cmdline"))


@pytest.mark.long
async def test_what_comes_while_memory_moves_is_not_taken_for_what_was_left_unread(
    recovery, jupyter
):
    server = await asyncio.to_thread(jupyter)
    kernel = await asyncio.to_thread(server.start_kernel)
    (process,) = (p for p in server.place.tree.processes if is_kernel(p, kernel))
    code = """import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1])"""
    port = int(await asyncio.to_thread(server.run, kernel, code))
    old = socket.create_connection(("127.0.0.1", port))
    new = socket.create_connection(("127.0.0.1", port))
    code = "ends = [listener.accept()[0] for _ in 'ab']; [e.fileno() for e in ends]"
    numbers = json.loads(await asyncio.to_thread(server.run, kernel, code))

    class DataMeanwhile(FullCards):
        def empty(self, look, survey, limit, cancel, standing) -> None:
            new.send(b"x")
            super().empty(look, survey, limit, cancel, standing)

    old.send(b"left lying")
    client = jupyter_api.make_client()
    cards = DataMeanwhile(process, 1)
    assert await run(recovery, server.place, cards, "nap", client) is None
    nap = recovery.releases.records.find(server.place.incarnation).nap
    assert nap.stage is NapStage.ASLEEP
    first, second = (nap.standing.get(f"{process.ns_pid}/{fd}") for fd in numbers)
    assert (first, second) == (len("left lying"), None)
    for one in (client, old, new):
        one.close()


@pytest.mark.long
async def test_pipe_that_the_driver_has_not_closed_when_it_is_stopped_wakes_nobody(
    recovery, jupyter
):
    """Seen on a card under load: three naps of ten."""
    server = await asyncio.to_thread(jupyter)
    kernel = await asyncio.to_thread(server.start_kernel)
    (process,) = (p for p in server.place.tree.processes if is_kernel(p, kernel))
    code = "import os; end, other = os.pipe(); os.close(other); print(end)"
    ends = []

    class PipeLeft(FullCards):
        def empty(self, look, survey, limit, cancel, standing) -> None:
            def held() -> None:
                standing()
                ends.append(int(server.run(kernel, code)))

            super().empty(look, survey, limit, cancel, held)

    client = jupyter_api.make_client()
    cards = PipeLeft(process, 1)
    assert await run(recovery, server.place, cards, "nap", client) is None
    nap = recovery.releases.records.find(server.place.incarnation).nap
    assert nap.stage is NapStage.ASLEEP
    assert nap.standing.get(f"{process.ns_pid}/{ends[0]}") == ENDED
    client.close()

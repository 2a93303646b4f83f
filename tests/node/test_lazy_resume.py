"""Resumes that stop at the nap, through the real agent and CRIU; the card is false.

What uses the card ends when it runs without it, so each of these tests also shows that
it does not.
"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from websockets.sync.client import connect

from jupyterhub_gpu_reclaim.linux import processes, procfs
from jupyterhub_gpu_reclaim.node.jupyter import stand_in
from tests.node.test_wakeup import CULL_AFTER, CULL_EVERY
from tests.support.agent import wait_for
from tests.support.fake_cards import FAKE, computes, holders, take_card
from tests.support.long_stories import but

pytestmark = pytest.mark.shares_an_agent(card=True)


def state(agent, place) -> str:
    return agent.tree(place)["state"]


def suspend(agent, place, checkpoint: str = "cp") -> None:
    ended = agent.capture(place, checkpoint)[-1]
    assert ended.get("checkpoint"), ended
    path = f"/v1/sessions/{place.incarnation}/release"
    assert agent.post(path, {"checkpoint": checkpoint}).json()["state"] == "gone"


def resume(agent, place, checkpoint: str = "cp") -> dict:
    ended = agent.restore(place, checkpoint, lazy=True)[-1]
    assert ended.get("tree"), ended
    return ended["tree"]


def wake(agent, place) -> None:
    agent.events(f"/v1/sessions/{place.incarnation}/wake", {})


def record_of(agent, place) -> dict:
    path = agent.folder / "state" / "records" / f"{place.incarnation}.json"
    return json.loads(path.read_bytes())


@pytest.fixture
def suspended(agent, start):
    """A program with a card and its child, suspended as "cp"."""
    place = start()
    computes(place)
    suspend(agent, place)


def naps(place) -> bool:
    """The program stands without its card, and its child goes on."""
    computes(place, "c")
    return processes.is_stopped(place.tree.server) and not holders(place)


def test_session_comes_back_without_its_card_and_has_it_when_it_wakes(
    agent, suspended, places
):
    # In a place that ends while it naps it is gone, and not lost.
    place = places("hold")
    resume(agent, place)
    path = f"/v1/sessions/{place.incarnation}/kill"
    assert agent.post(path).json()["state"] == "gone"
    assert not place.alive

    place = places("hold")
    events = agent.restore(place, "cp", lazy=True)
    steps = [one["step"]["step"] for one in events if one.get("step")]
    assert "gpu" not in steps
    tree = events[-1]["tree"]
    assert (tree["state"], tree["origin"]) == ("napping", "cp")
    assert tree["nap"]
    assert naps(place)
    assert state(agent, place) == "napping"
    # The same order again finds it done.
    assert resume(agent, place)["state"] == "napping"

    # A suspend from that nap that is taken back ends in it.
    assert agent.capture(place, "cp-2")[-1]["checkpoint"]
    path = f"/v1/sessions/{place.incarnation}/thaw"
    assert agent.post(path).json()["state"] == "napping"
    assert naps(place)

    wake(agent, place)
    computes(place)
    assert holders(place) == 1
    assert state(agent, place) == "running"


@pytest.mark.long
def test_session_is_suspended_from_that_nap_again_and_again(agent, suspended, places):
    for number in range(1, 4):
        place = places("hold")
        before = f"cp-{number - 1}" if number > 1 else "cp"
        assert resume(agent, place, before)["state"] == "napping"
        assert naps(place)
        suspend(agent, place, f"cp-{number}")
    place = places("hold")
    assert agent.restore(place, "cp-3")[-1]["tree"]["state"] == "running"
    computes(place)
    assert holders(place) == 1


def test_session_without_a_card_comes_back_as_ever(agent, counter, places):
    suspend(agent, counter)
    place = places("hold")
    assert resume(agent, place)["state"] == "running"


#: It holds /dev/tty, as the usual shell where SHELL is not set.
SHELL = '{"shell_command": ["/bin/sh"]}'
STEPS = ["check", "files", "programs", "memory", "answer"]


@pytest.mark.parametrize("step", but(STEPS, "memory"))
def test_agent_killed_in_it_leaves_a_nap_or_nothing(agent, suspended, places, step):
    place = places("hold")

    def kill(event) -> bool:
        if (event.get("step") or {}).get("step") == step:
            agent.kill()
            return True
        return False

    agent.restore(place, "cp", kill, lazy=True)
    agent.kill()
    agent.start()
    wait_for(lambda: not agent.tree(place)["operation"])
    if state(agent, place) != "napping":
        assert state(agent, place) == "holding"
        assert not place.tree.processes
        place.kill()
        place = places("hold")
        assert resume(agent, place)["state"] == "napping"
    assert naps(place)
    wake(agent, place)
    computes(place)
    assert holders(place) == 1


@pytest.mark.parametrize("ran", but([False, True], False))
def test_agent_that_died_before_it_had_noted_the_end_finds_a_nap(
    agent, suspended, places, ran
):
    """Its last record says that the tree is whole; all, or nothing, goes on."""
    place = places("hold")
    resume(agent, place)
    agent.kill()
    path = agent.folder / "state" / "records" / f"{place.incarnation}.json"
    path.write_bytes(path.read_bytes().replace(b'"restored"', b'"continuing"'))
    if not ran:
        for process in place.tree.processes:
            os.kill(process.pid, signal.SIGSTOP)
    agent.start()
    wait_for(lambda: state(agent, place) == "napping")
    assert record_of(agent, place)["stage"] == "restored"
    assert naps(place)
    wake(agent, place)
    computes(place)


@pytest.mark.long
@pytest.mark.shares_an_agent(False)
def test_session_whose_agent_never_returns_is_woken(agent, suspended, places):
    agent.kill()
    agent.start("--AgentApp.thaw_after_seconds=1")
    place = places("hold")
    resume(agent, place)
    agent.kill()
    computes(place)
    agent.start()
    assert state(agent, place) == "running"


# --- a Jupyter server -----------------------------------------------------------------


@pytest.fixture
def lab(agent, driver, device, jupyter, places):
    """Starts a server, whose first kernel has the card; suspends and resumes it."""
    return Lab(agent, driver, device, jupyter, places)


class Lab:
    def __init__(self, agent, driver, device, jupyter, places) -> None:
        self.agent, self._places, self._start = agent, places, jupyter
        self._card = (driver, device)

    def start(self, *options: str) -> None:
        self.server = self._start(*options)
        self.gpu = self.server.start_kernel("gpu.ipynb")
        self.cpu = self.server.start_kernel("cpu.ipynb")
        take_card(self.server, self.gpu, *self._card)
        self.server.run(self.gpu, "numbers = list(range(10))")
        self.server.run(self.cpu, "x = 41")
        self.place = self.server.place

    def comes_back(self, seconds: float = 0.0) -> str:
        suspend(self.agent, self.place)
        time.sleep(seconds)
        self.place = self._places("hold")
        return resume(self.agent, self.place)["state"]

    @property
    def kernel(self) -> processes.Process:
        (found,) = (one for one in self.place.tree.processes if self._is_kernel(one))
        return found

    def _is_kernel(self, process: processes.Process) -> bool:
        with contextlib.suppress(OSError):  # others come and go
            words = procfs.words(process.pid, "cmdline")
            return any(self.gpu.encode() in word for word in words)
        return False

    @property
    def state(self) -> str:
        return state(self.agent, self.place)

    def listed(self) -> dict[str, dict]:
        return {one["id"]: one for one in self.server.kernels()}


@pytest.mark.long
def test_page_files_terminals_and_other_kernels_answer_without_the_card(lab):
    lab.start()
    assert lab.comes_back() == "napping"
    client = lab.server.client
    assert lab.server.run(lab.cpu, "x + 1") == "42"
    assert client.get("api/contents/gpu.ipynb").status_code == 200
    assert client.post("api/terminals").status_code == 200
    assert set(lab.listed()) == {lab.gpu, lab.cpu}
    assert processes.is_stopped(lab.kernel)
    assert not holders(lab.place)
    time.sleep(1)
    assert lab.state == "napping"
    # A page that is opened, and its cell.
    assert lab.server.run(lab.gpu, "sum(numbers)") == "45"
    assert lab.server.run(lab.gpu, "has_card()") == "True"
    assert lab.state == "running"
    assert holders(lab.place) == 1
    assert lab.listed()[lab.gpu]["execution_state"] == "idle"


@pytest.mark.long
def test_kernel_that_comes_back_napping_counts_as_used_at_its_return(lab):
    lab.start()
    before = lab.listed()
    assert lab.comes_back() == "napping"
    after = lab.listed()
    for kernel in (lab.gpu, lab.cpu):
        assert after[kernel]["last_activity"] > before[kernel]["last_activity"]
        assert after[kernel]["execution_state"] == "idle"


@pytest.mark.long
def test_kernel_that_comes_back_napping_is_not_culled_for_its_suspension(lab):
    lab.start(
        "--debug",
        f"--MappingKernelManager.cull_idle_timeout={CULL_AFTER}",
        f"--MappingKernelManager.cull_interval={CULL_EVERY}",
    )
    assert lab.comes_back(CULL_AFTER) == "napping"
    log = lab.place.output
    wait_for(lambda: "for kernels idle >" in log.read_text(errors="replace"))
    wait_for(lambda: "last_activity" in log.read_text(errors="replace"))
    assert set(lab.listed()) == {lab.gpu, lab.cpu}
    assert lab.state == "napping"
    assert lab.server.run(lab.gpu, "sum(numbers)") == "45"


def test_tab_that_comes_back_finds_its_output_and_nothing_else(lab):
    """What is said for a kernel reaches the connections of its pages as well."""
    lab.start()
    session = lab.server.run_and_leave(
        lab.gpu, "import time; time.sleep(0.5); print('kept')"
    )
    wait_for(lambda: lab.listed()[lab.gpu]["execution_state"] == "idle")
    assert lab.comes_back() == "napping"
    text = lab.server.listen(lab.gpu, session)
    assert text.count('"text": "kept') == 1
    assert lab.server.run(lab.gpu, "sum(numbers)") == "45"


@pytest.mark.long
def test_kernel_that_nobody_can_speak_for_has_its_memory_back_at_once(lab):
    lab.start()
    (file,) = lab.server.home.rglob(f"kernel-{lab.gpu}.json")
    told = json.loads(file.read_bytes())
    file.write_text(json.dumps({**told, "curve_publickey": "x" * 40}))
    assert lab.comes_back() == "running"
    assert "a kernel has to answer for itself" in lab.agent.said()
    assert lab.server.run(lab.gpu, "has_card()") == "True"


@pytest.mark.long
def test_nothing_is_said_in_the_middle_of_a_message(lab):
    """Its server has not taken in all of what the kernel has written."""
    lab.start()
    server, kernel = lab.place.tree.server, lab.kernel
    for process in (server, kernel):
        processes.send(process, signal.SIGSTOP)
        wait_for(lambda one=process: processes.is_stopped(one))
    first = stand_in.speak_for(lab.place.init_pid, server, [kernel])
    assert first
    assert not stand_in.is_heard(first, 0.05)
    assert stand_in.speak_for(lab.place.init_pid, server, [kernel]) is None
    processes.send(server, signal.SIGCONT)
    assert stand_in.is_heard(first, 30)
    processes.send(kernel, signal.SIGCONT)
    assert lab.server.run(lab.gpu, "sum(numbers)") == "45"


@pytest.mark.long
def test_what_was_left_unread_does_not_wake_it_and_what_comes_then_does(lab):
    """From another program of its session, whose connection comes back as well."""
    lab.start()
    listens = """import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1])"""
    port = int(lab.server.run(lab.gpu, listens))
    code = f"import socket; end = socket.create_connection(('127.0.0.1', {port}))"
    lab.server.run(lab.cpu, code)
    lab.server.run(lab.gpu, "other = listener.accept()[0]")
    lab.server.run(lab.cpu, "end.send(b'left lying')")
    assert lab.comes_back() == "napping"
    time.sleep(1)
    assert lab.state == "napping"
    lab.server.run(lab.cpu, "end.send(b', and more')")
    wait_for(lambda: lab.state == "running")
    assert lab.server.run(lab.gpu, "other.recv(99)") == "b'left lying, and more'"


@pytest.mark.long
def test_program_in_a_terminal_naps_with_its_shell_and_wakes_by_a_key(
    agent, driver, device, jupyter, places
):
    server = jupyter(f"--ServerApp.terminado_settings={SHELL}")
    name = server.client.post("api/terminals").json()["name"]
    url = server.url.replace("http", "ws") + f"terminals/websocket/{name}"
    headers = {"Authorization": f"token {server.TOKEN}"}
    command = f"{sys.executable} -ISu {FAKE / 'user.py'} {driver} {device}"
    with connect(url, additional_headers=headers) as terminal:
        terminal.send(json.dumps(["stdin", f"{command}\r"]))
        wait_for(lambda: holders(server.place) == 2)
        wait_for(lambda: any(Path(driver).iterdir()))
    suspend(agent, server.place)
    place = places("hold")
    assert resume(agent, place)["state"] == "napping"
    stopped = [one for one in place.tree.processes if one.stopped]
    assert len(stopped) == 2
    assert place.tree.server not in stopped
    with connect(url, additional_headers=headers) as terminal:
        time.sleep(1)
        assert state(agent, place) == "napping"
        terminal.send(json.dumps(["stdin", "\x03"]))
        wait_for(lambda: "KeyboardInterrupt" in terminal.recv(30))
        terminal.send(json.dumps(["stdin", "echo a$((1 + 1))b\r"]))
        wait_for(lambda: "a2b" in terminal.recv(30))


@pytest.mark.long
def test_server_that_shows_the_gpu_has_no_memory_there_and_runs_on(lab, driver, device):
    """It asks how the GPU is (NVML), and is a user of it in the driver's eyes."""
    lab.start()
    asks = f"""import os, pathlib, shutil
os.close(os.open("{device}", os.O_RDWR))
mapped = pathlib.Path("{driver}", str(os.getpid()))
mapped.write_text("0 0")"""
    lab.server.run(lab.cpu, asks)
    assert lab.comes_back() == "napping"
    assert lab.server.run(lab.cpu, "x + 1") == "42"
    assert lab.state == "napping"


@pytest.mark.long
def test_cell_that_runs_while_it_is_suspended_runs_on(lab):
    """Nobody is going to wake a kernel that has what it needs to go on."""
    lab.start()
    session = lab.server.run_and_leave(
        lab.gpu, "import time; time.sleep(8); print('at its end')"
    )
    lab.comes_back()
    wait_for(lambda: lab.state == "running")
    wait_for(lambda: lab.listed()[lab.gpu]["execution_state"] == "idle")
    assert "at its end" in lab.server.listen(lab.gpu, session)

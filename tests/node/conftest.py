"""A real agent, real sessions with a real Jupyter server, real CRIU and store."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets.held import HeldPorts
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.node.operations.host_memory import HostMemory
from jupyterhub_gpu_reclaim.node.operations.operations import Operations, TimeLimits
from jupyterhub_gpu_reclaim.node.operations.records import Records
from jupyterhub_gpu_reclaim.node.sessions.placements import LocalPlacements
from jupyterhub_gpu_reclaim.node.workflows.recovery import Recovery
from jupyterhub_gpu_reclaim.node.workflows.tools import WorkflowTools
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS
from tests.support import agent as support
from tests.support import fake_cards, gpu
from tests.support.agent import running_agent, short_folder


def shares_an_agent(node) -> bool:
    """Whether it takes the module's: ``shares_an_agent(False)`` is an exception."""
    marker = node.get_closest_marker("shares_an_agent")
    return marker is not None and marker.args != (False,)


@pytest.fixture(scope="module")
def shared_agent(request):
    """One for all tests of a module that leave it as it was.

    Where the marker says ``card``, it was started with a false card.
    """
    marker = request.node.get_closest_marker("shares_an_agent")
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        if marker.kwargs.get("card"):
            library = request.getfixturevalue("library")
            fake_cards.driver(library, folder, patch)
            if marker.kwargs["card"] == "counting":
                fake_cards.counting(None, library, patch)
        with running_agent(folder) as made:
            yield made


@pytest.fixture
def folder(request):
    """What a test may fill; the module's, where the agent is."""
    if shares_an_agent(request.node):
        yield request.getfixturevalue("shared_agent").folder
        return
    with short_folder() as path:
        yield path


@pytest.fixture
def agent(request, folder):
    """An agent without checkpoints: the test's own, or the module's."""
    shared = shares_an_agent(request.node)
    made = request.getfixturevalue("shared_agent") if shared else running_agent(folder)
    made.hear()
    yield made
    if (ended := made.popen.poll()) is not None:
        print(f"the agent had ended, with {ended}")
    else:
        for one in made.get("/v1/checkpoints").json():
            made.post(f"/v1/checkpoints/{one['id']}/discard")
    if not shared:
        made.kill()
        print(made.log.read_text())
    elif ended is not None:
        made.start()


@pytest.fixture
def driver(request, folder, library):
    """The false driver, for the agent that is started next, or the module's."""
    if not shares_an_agent(request.node):
        monkeypatch = request.getfixturevalue("monkeypatch")
        yield fake_cards.driver(library, folder, monkeypatch)
        return
    state = folder / "cuda"
    yield state
    for path in state.iterdir():  # the next session's pids are the same
        path.unlink()


@pytest.fixture
def counting(request, driver, library):
    """The false driver also tells whose memory it is: several may use the card."""
    if not shares_an_agent(request.node):
        fake_cards.counting(driver, library, request.getfixturevalue("monkeypatch"))
    return driver


@contextlib.contextmanager
def server_with_a_card(library, *, counting: bool = False):
    """An agent and a Jupyter server beside a false card, for all tests of a module."""
    with (
        short_folder() as folder,
        pytest.MonkeyPatch.context() as patch,
        fake_cards.device_file() as device,
        contextlib.contextmanager(support.places)(folder) as place,
    ):
        driver = fake_cards.driver(library, folder, patch)
        if counting:
            fake_cards.counting(driver, library, patch)
        agent = running_agent(folder)
        server = support.Jupyter(folder, place)
        try:
            yield agent, server, (driver, device)
        finally:
            agent.kill()
            print(agent.log.read_text())
            server.client.close()


places = pytest.fixture(support.places)
counter = pytest.fixture(support.counter)
jupyter = pytest.fixture(support.jupyter)
library = pytest.fixture(scope="session")(fake_cards.library)
device = pytest.fixture(fake_cards.device)
start = pytest.fixture(fake_cards.start)


@pytest.fixture
def recovery(folder):
    """What settles sessions, over a real store in a folder and without a GPU."""
    if os.geteuid() != 0:
        pytest.skip("needs root: sessions have namespaces")
    (folder / "ports").mkdir()
    clock = SystemClock()
    store = Repository(FolderBackend(folder / "store"), clock=clock, keys=KEYS)
    return Recovery(
        placements=LocalPlacements(folder.name),
        operations=Operations(),
        tools=WorkflowTools(
            records=Records(folder / "records"),
            store=store,
            criu=None,
            client=None,
            work=None,
            memory=HostMemory(),
            ports=HeldPorts(folder / "ports"),
            accelerator=Accelerator(gpu.AbsentDriver(), Nvml(), TimeLimits()),
            clock=clock,
            limits=TimeLimits(criu=4.0),
        ),
    )


@pytest.fixture
def small_store(agent):
    """Room for the beginning of a session in the agent's store."""
    store = f"{agent.folder}/store"
    identity = Path(store, "identity").read_bytes()
    options = ["-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", store]
    subprocess.run(["mount", *options], check=True)
    Path(store, "identity").write_bytes(identity)  # else it is another store
    yield Path(store)
    agent.kill()
    subprocess.run(["umount", "-l", store], check=True)

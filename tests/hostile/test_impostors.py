"""Somebody who listens where the service or an agent should, while it is away."""

import asyncio
import contextlib
import os
import subprocess
import sys

import pytest
from traitlets import TraitError

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.http import unix_sockets
from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey
from jupyterhub_gpu_reclaim.hub.client import ServiceClient
from jupyterhub_gpu_reclaim.service.app import ReclaimService
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from tests.service.conftest import service
from tests.support.ran import ran
from tests.support.simulated_node import TOKEN

__all__ = ["service"]

PLACE = Placement(key=SessionKey("ada"), incarnation="i2", checkpoint="c1")
#: Listens there as another user, and writes down all that it is told.
IMPOSTOR = """
import os, socket, sys
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
made = socket.socket(socket.AF_UNIX)
try:
    os.unlink(sys.argv[1])
except FileNotFoundError:
    pass
except OSError as error:
    sys.exit(f"unlink: {error.strerror}")
try:
    made.bind(sys.argv[1])
except OSError as error:
    sys.exit(f"bind: {error.strerror}")
os.chmod(sys.argv[1], 0o777)
made.listen()
print("listens", flush=True)
while True:
    with made.accept()[0] as one:
        heard = one.recv(65536)
        print("heard", len(heard), flush=True)
        if heard:
            one.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 18\\r\\n\\r\\n")
            one.sendall(b'{"action": "cold"}')
"""
#: Asks there as another user.
STRANGER = """
import os, socket, sys
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
socket.socket(socket.AF_UNIX).connect(sys.argv[1])
"""
QUESTIONS = {"trees": (), "samples": (), "checkpoints": (), "identity": ("the-one",)}
ORDERS = (
    orders.Thaw(),
    orders.Release(checkpoint="the-one"),
    orders.Kill(),
    orders.Cancel(),
    orders.Discard(),
)
STREAMS = (orders.Capture(checkpoint="the-one"), orders.Restore(checkpoint="the-one"))

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Impostor:
    def __init__(self, path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", IMPOSTOR, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def heard(self, count: int) -> set[str]:
        return {self.process.stdout.readline() for _ in range(count)}


@pytest.fixture
def open_folder(tmp_path_factory):
    """A folder in which anybody may put a socket; its path is short."""
    folder = tmp_path_factory.mktemp("open")
    for each in (folder, *folder.parents[:3]):
        with contextlib.suppress(OSError):
            each.chmod(each.stat().st_mode | 0o711)
    folder.chmod(0o777)
    return folder


@pytest.fixture
def impostor(open_folder):
    made = Impostor(open_folder / "it.sock")
    assert made.process.stdout.readline() == "listens\n"
    yield made
    made.process.kill()
    made.process.communicate()


async def test_impostor_of_the_service_hears_nothing_and_is_not_believed(
    impostor, open_folder
):
    client = ServiceClient(f"unix:{open_folder}/it.sock", timeout=2)
    with pytest.raises(Unreachable, match="does not answer"):
        await client.plan_start(PLACE)
    with pytest.raises(Unreachable):
        async for _ in client.progress(PLACE.key):
            pass
    client.close()
    assert await asyncio.to_thread(impostor.heard, 2) == {"heard 0\n"}


async def test_impostor_of_an_agent_hears_no_token_and_no_order(impostor, open_folder):
    address = f"unix:{open_folder}/it.sock"
    client = AgentClient(address, TOKEN, quick=5, slow=5, silence=5)
    for name, words in QUESTIONS.items():
        with pytest.raises(Unreachable):
            await getattr(client, name)(*words)
    for order in ORDERS:
        with pytest.raises(Unreachable):
            await client.order("i1", order)
    for order in STREAMS:
        with pytest.raises(Unreachable):
            async for _ in client.follow("i1", order):
                pass
    client.close()
    count = len(QUESTIONS) + len(ORDERS) + len(STREAMS)
    assert await asyncio.to_thread(impostor.heard, count) == {"heard 0\n"}


def asked_by_a_stranger(path) -> str:
    words = [sys.executable, "-c", STRANGER, str(path)]
    return ran(words).stderr


async def test_socket_in_a_closed_folder_cannot_be_replaced_nor_asked(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    path = folder / "spawner.sock"
    listening = unix_sockets.listening(path)
    assert path.stat().st_mode & 0o777 == 0o600
    done = Impostor(path)
    assert done.process.wait(60) != 0
    assert "Permission denied" in done.process.communicate()[1]
    assert "PermissionError" in asked_by_a_stranger(path)
    listening.close()


async def test_socket_of_mode_0600_is_refused_to_others_in_an_open_folder(open_folder):
    """The folder may be a volume's, which a group may write to."""
    listening = unix_sockets.listening(open_folder / "it.sock")
    assert "PermissionError" in asked_by_a_stranger(open_folder / "it.sock")
    listening.close()


def test_stale_socket_is_replaced_and_another_file_is_not(tmp_path):
    path = tmp_path / ("long" * 40) / "spawner.sock"
    path.parent.mkdir()
    unix_sockets.listening(path).close()
    unix_sockets.listening(path).close()
    other = tmp_path / "other"
    other.write_text("mine")
    with pytest.raises(OSError, match="in use"):
        unix_sockets.listening(other)
    assert other.read_text() == "mine"


@pytest.mark.parametrize("address", ["http://10.0.0.5:8099", "http://127.0.0.1:8099"])
def test_agent_by_plain_http_is_refused_with_a_sentence(address):
    with pytest.raises(TraitError) as refused:
        ReclaimService(agent=address)
    assert str(refused.value) == (
        "ReclaimService.agent must be like unix:/path or https://host:port: by plain"
        " HTTP nothing is sent"
    )
    assert ReclaimService(agent="https://10.0.0.5:8099").agent

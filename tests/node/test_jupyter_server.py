"""A server that speaks TLS is refused before anything of its session is touched."""

import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from jupyterhub_gpu_reclaim.common.models import Identity
from jupyterhub_gpu_reclaim.node.jupyter.server import speaks_tls
from jupyterhub_gpu_reclaim.sampling import jupyter_api
from tests.support import certificates, light_modules
from tests.support.agent import SERVER, wait_for

pytestmark = pytest.mark.shares_an_agent

TOKEN = "s3cret-of-ann-0123456789"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of its own for 127.0.0.1, and its key, in one file."""
    folder = tmp_path_factory.mktemp("certificate")
    return certificates.certificate(folder, "server", "127.0.0.1")


@pytest.fixture(params=["anybody", "with-a-certificate"])
def place(request, folder, places, certificate):
    """A Jupyter server behind TLS; as under internal_ssl, one that wants it, too."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    wants = [f"--ServerApp.client_ca={certificate}"]
    place = places(
        "start",
        *(sys.executable, "-c", SERVER, "--allow-root", "--no-browser"),
        f"--ServerApp.token={TOKEN}",
        f"--ServerApp.port={port}",
        "--ServerApp.base_url=/user/ann/",
        f"--ServerApp.root_dir={folder}",
        f"--ServerApp.certfile={certificate}",
        f"--ServerApp.keyfile={certificate}",
        *(wants if request.param == "with-a-certificate" else []),
        env={
            "PYTHONPATH": str(light_modules.FOLDER),
            "PATH": f"{sys.prefix}/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "JUPYTERHUB_API_TOKEN": TOKEN,
            "JUPYTERHUB_SERVICE_URL": f"https://127.0.0.1:{port}/user/ann/",
            "JUPYTERHUB_SERVICE_PREFIX": "/user/ann/",
        },
    )

    def listens() -> bool:
        assert place.popen.poll() is None, place.output.read_text()
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    wait_for(listens)
    return place


def test_capture_server_behind_tls_is_refused_and_left_alone(agent, place):
    events = agent.capture(place, "cp")
    assert events[-1]["failure"]["code"] == "server_tls", events[-1]
    assert agent.tree(place)["state"] == "running"
    assert agent.get("/v1/checkpoints").json() == []
    assert place.alive


def login(url: str) -> Identity:
    environment = {"JUPYTERHUB_SERVICE_URL": url}
    return Identity(api_token="", port=0, environment=environment)


class Plain(BaseHTTPRequestHandler):
    """Speaks HTTP, whatever its environment says."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"version": "2"}')

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def plain():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Plain)
    Thread(target=server.serve_forever, daemon=True).start()
    yield jupyter_api.ServerAddress(server.server_port, "/", "")
    server.shutdown()
    server.server_close()


async def test_speaks_server_that_answers_in_plain_http_does_not(plain):
    client = jupyter_api.make_client()
    assert not await speaks_tls(client, plain, login("https://127.0.0.1:1/"))
    client.close()


async def test_speaks_server_that_does_not_answer_is_judged_by_its_address(monkeypatch):
    asking = "jupyterhub_gpu_reclaim.node.jupyter.server._ASK_SECONDS"
    monkeypatch.setattr(asking, 0.2)
    client = jupyter_api.make_client()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = jupyter_api.ServerAddress(silent.getsockname()[1], "/", "")
        assert await speaks_tls(client, where, login("https://127.0.0.1:1/"))
        assert not await speaks_tls(client, where, login("http://127.0.0.1:1/"))
    client.close()

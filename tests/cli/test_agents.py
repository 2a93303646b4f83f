"""``agents check``: what ``helm test`` says of agents, real but for what they save."""

import asyncio
import ssl
import threading

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.cli.main import main
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.node_status import NodeStatus
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.http.routes import make_application
from tests.clients.test_agent_tls import NAME, certificate
from tests.support.simulated_node import TOKEN, simulated_nodes


class Credulous(RequestHandler):
    def get(self) -> None:
        self.write({"host": "open", "version": "0", "criu": "4.2", "cards": []})


@pytest.fixture
def serve(tmp_path):
    """Serves an application as an agent does; returns its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate(tmp_path, NAME))
    (tmp_path / "token").write_text(TOKEN)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers = []

    async def listen(make):
        server = HTTPServer(make(), ssl_options=context)
        [socket] = bind_sockets(0, "127.0.0.1")
        server.add_socket(socket)
        servers.append(server)
        return socket.getsockname()[1]

    async def close():
        for server in servers:
            server.stop()
            await server.close_all_connections()

    def there(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    yield lambda make: there(listen(make))
    there(close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


@pytest.fixture
def agent():
    with simulated_nodes() as nodes:
        yield nodes.add().agent


@pytest.fixture
def check(tmp_path, capsys):
    """Runs the command; its exit code and all that it said."""

    def check(port, **changed):
        given = {
            "at": "127.0.0.1",
            "port": port,
            "token-file": tmp_path / "token",
            "ca-file": tmp_path / f"{NAME}.pem",
            **changed,
        }
        options = [f"--{name}={value}" for name, value in given.items()]
        status = main(["agents", "check", *options])
        told = capsys.readouterr()
        return status, told.out + told.err

    return check


def test_an_agent_that_can_save_sessions_passes(serve, agent, check):
    status, said = check(serve(lambda: make_application(agent, TOKEN)))
    assert status == 0
    assert said.startswith("127.0.0.1: can save sessions: agent ")
    assert "no GPU driver" in said


def test_what_an_agent_lacks_is_said_and_fails(serve, agent, check):
    missing = finding(Reason.CAPABILITY_MISSING, capability="CAP_SYS_ADMIN")
    agent.describe = lambda: NodeStatus(host="one", version="1", findings=[missing])
    status, said = check(serve(lambda: make_application(agent, TOKEN)))
    assert status == 1
    assert "127.0.0.1: cannot save sessions: agent 1 on one, no CRIU" in said
    assert "Error: The agent lacks CAP_SYS_ADMIN" in said


def test_an_agent_that_obeys_strangers_fails(serve, check):
    status, said = check(serve(lambda: Application([("/v1/.*", Credulous)])))
    assert status == 1
    assert "answers 200, not 401, to a wrong token" in said


def test_a_token_of_somebody_else_fails(serve, agent, check, tmp_path):
    port = serve(lambda: make_application(agent, TOKEN))
    (tmp_path / "token").write_text("another")
    status, said = check(port)
    assert status == 1
    assert "the agent does not take our token" in said


def test_another_certificate_fails(serve, agent, check, tmp_path):
    port = serve(lambda: make_application(agent, TOKEN))
    certificate(tmp_path, "somebody-else")
    status, said = check(port, **{"ca-file": tmp_path / "somebody-else.pem"})
    assert status == 1
    assert "agent_untrusted" in said


@pytest.mark.parametrize("content", [b"\xff\xfe", b"one\ntwo", "ä".encode()])
def test_a_token_that_is_no_line_of_text_is_said_and_fails(
    serve, agent, check, tmp_path, content
):
    port = serve(lambda: make_application(agent, TOKEN))
    (tmp_path / "token").write_bytes(content)
    status, said = check(port)
    assert status == 1
    assert f"token file {tmp_path}/token: it is no " in said


@pytest.mark.parametrize("port", ["0", "-1", "65536", "https"])
def test_port_that_there_is_not_is_named(check, capsys, port):
    with pytest.raises(SystemExit):
        check(port)
    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"at": "nobody.invalid"}, "No agent is ready on any node of the cluster."),
        ({"ca-file": "/nowhere/ca.crt"}, "There is no file /nowhere/ca.crt."),
        ({"token-file": "/nowhere/token"}, "There is no file /nowhere/token."),
        ({"at": "no..body"}, "No agent is ready on any node of the cluster."),
        ({"ca-file": __file__}, f"There is no certificate in {__file__}."),
    ],
)
def test_what_cannot_be_asked_is_an_error_in_words(serve, agent, check, changed, says):
    status, said = check(serve(lambda: Application([])), **changed)
    assert status != 0
    assert said.startswith(f"Error: {says}")

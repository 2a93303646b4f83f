"""What answers while the service does not work: it has no login to ask for."""

import json
import socket

import pytest
from tornado.httpclient import AsyncHTTPClient

from jupyterhub_gpu_reclaim.common.http.server import Door
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.settings.environment import (
    SPAWNER_SOCKET,
    SPAWNER_TOKEN,
    HubEnvironment,
)
from jupyterhub_gpu_reclaim.service.web.front import Front

PREFIX = "/services/gpu-reclaim/"


@pytest.fixture
async def front():
    """One at an address of its own, and how to ask it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        environment = HubEnvironment.read(
            {
                "JUPYTERHUB_API_TOKEN": "t" * 32,
                "JUPYTERHUB_API_URL": "http://127.0.0.1:1/hub/api",
                "JUPYTERHUB_SERVICE_URL": url,
                "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
                SPAWNER_TOKEN: "s" * 32,
                SPAWNER_SOCKET: "/nowhere/spawner.sock",
            }
        )
        made = Front(environment)
        server = Door(made, max_body=1 << 20, files=1000)
        server.add_socket(listening)

        async def ask(path: str, **more):
            answer = await AsyncHTTPClient().fetch(
                url + path, raise_error=False, **more
            )
            return answer.code, answer.body.decode()

        yield made, ask
        server.stop()
        await server.close_all_connections()


async def test_sentence_with_markup_is_shown_and_not_run(front):
    made, ask = front
    why = "idle_after must be a number, not '<script>alert(1)</script>'."
    made.close(Reason.SERVICE_BROKEN, why=why)
    status, page = await ask(PREFIX)
    assert status == 503
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


@pytest.mark.parametrize(
    ("reason", "facts"),
    [
        (Reason.SERVICE_STARTING, {}),
        (Reason.JOURNAL_HELD, {}),
        (Reason.SERVICE_BROKEN, {"why": "A setting is wrong."}),
    ],
)
async def test_answer_never_says_that_a_session_may_start_cold(front, reason, facts):
    made, ask = front
    made.close(reason, **facts)
    for call in ("plan-start", "plan-stop", "release", "forget"):
        status, text = await ask(
            f"{PREFIX}api/spawner/{call}", method="POST", body="x" * 60_000
        )
        assert (status, json.loads(text)["code"]) == (503, reason.value)
    for path in ("readyz", "metrics", "api/sessions", "api/nothing"):
        status, text = await ask(PREFIX + path)
        assert (status, json.loads(text)["code"]) == (503, reason.value)
    for path in (PREFIX, f"{PREFIX}sessions/ada/-", "/elsewhere"):
        status, text = await ask(path)
        assert status == 503
        assert reason.sentence(**facts) in text
    assert (await ask(f"{PREFIX}healthz"))[0] == 200
    assert (await ask(f"{PREFIX}static/live.js"))[0] == 200

"""The Hub's client of the service: time limits, refusals, broken streams."""

import asyncio
import json

import pytest
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.http import unix_sockets
from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub import client as service
from jupyterhub_gpu_reclaim.hub.client import ServiceClient
from jupyterhub_gpu_reclaim.service.api.context import Context

KEY = SessionKey("a/b", "")
PLACEMENT = Placement(key=KEY, incarnation="i1")
ANSWERS: dict[str, object] = {}
SEEN: list[tuple[str, bytes]] = []


class Scripted(RequestHandler):
    """Answers with what the test has put down for the path's last word."""

    async def prepare(self) -> None:
        SEEN.append((self.request.uri, self.request.body))
        word = self.request.path.rpartition("/")[2]
        answer = ANSWERS[word if word in ANSWERS else "progress"]
        if callable(answer):
            await answer(self)
            return
        self.told(*answer)

    def told(self, status: int, body: bytes) -> None:
        self.set_status(status)
        self.finish(body)


@pytest.fixture
def client(tmp_path):
    ANSWERS.clear()
    SEEN.clear()
    server = HTTPServer(Application([(".*", Scripted)]))
    server.add_socket(unix_sockets.listening(tmp_path / "s.sock"))
    client = ServiceClient(f"unix:{tmp_path}/s.sock", timeout=0.5, slow_timeout=1)
    yield client
    client.close()
    server.stop()


@pytest.fixture(autouse=True)
async def loop_runs():
    """The server of the fixture above needs the running loop."""


async def test_call_carries_its_body(client):
    ANSWERS["plan-start"] = 200, b'{"action": "cold"}'
    assert (await client.plan_start(PLACEMENT)).action == "cold"
    [(uri, body)] = SEEN
    assert uri == "/services/gpu-reclaim/api/spawner/plan-start"
    assert json.loads(body)["incarnation"] == "i1"


async def test_refusal_keeps_the_services_words(client):
    ANSWERS["plan-stop"] = 409, b'{"code": "not_captured", "message": "Not saved."}'
    with pytest.raises(Refused) as refused:
        await client.plan_stop(PLACEMENT)
    assert refused.value.message == "Not saved."
    assert refused.value.reason is Reason.NOT_CAPTURED


@pytest.mark.parametrize("status", [401, 403, 404, 500, 502])
async def test_answer_that_is_not_the_services_is_no_answer(client, status):
    ANSWERS["release"] = status, b"<html>nginx</html>"
    with pytest.raises(Unreachable):
        await client.release(PLACEMENT)


async def test_stream_that_falls_silent_is_given_up_after_three_heartbeats(
    client, monkeypatch
):
    """Else a start whose stream hangs would do so until the Hub's own limit."""
    assert 2 * Context.heartbeat < service.MAX_SILENCE <= 3 * Context.heartbeat
    monkeypatch.setattr(service, "MAX_SILENCE", 0.3)

    async def hang(handler):
        handler.write(b"\n")
        await handler.flush()
        await asyncio.sleep(5)

    ANSWERS["progress"] = hang
    first = anext(client.progress(KEY))
    with pytest.raises(Unreachable, match="does not answer"):
        await asyncio.wait_for(first, 60)


async def test_service_that_hangs_is_unreachable_within_the_limit(client):
    async def hang(handler):
        await asyncio.sleep(5)

    ANSWERS["stopped"] = hang
    async with asyncio.timeout(60):
        with pytest.raises(Unreachable) as error:
            await client.stopped(PLACEMENT)
    assert error.value.reason is Reason.SERVICE_UNREACHABLE


async def test_nobody_listens_is_unreachable(tmp_path):
    client = ServiceClient(f"unix:{tmp_path}/none.sock", timeout=0.2)
    with pytest.raises(Unreachable):
        await client.plan_stop(PLACEMENT)
    with pytest.raises(Unreachable):
        await anext(client.progress(KEY))
    client.close()


async def test_service_that_does_not_listen_yet_is_waited_for(tmp_path, monkeypatch):
    """It is started again: a caller gets its answer, not an error."""
    monkeypatch.setattr(service, "STARTING_PAUSE", 0.01)
    ANSWERS.clear()
    ANSWERS["plan-start"] = 200, b'{"action": "cold"}'
    path = tmp_path / ("long" * 30) / "spawner.sock"
    path.parent.mkdir()
    client = ServiceClient(f"unix:{path}", timeout=20)
    asked = asyncio.create_task(client.plan_start(PLACEMENT))
    await asyncio.sleep(0.1)
    assert not asked.done()
    server = HTTPServer(Application([(".*", Scripted)]))
    server.add_socket(unix_sockets.listening(path))
    assert (await asked).action == "cold"
    client.close()
    server.stop()


async def test_service_that_does_not_listen_is_waited_for_once_until_it_answers(
    tmp_path,
):
    """Else a stop waits three times: for its plan, for that once more, to report it."""
    ANSWERS.clear()
    ANSWERS["stopped"] = 202, b""
    path, now = tmp_path / "s.sock", asyncio.get_running_loop().time
    client = ServiceClient(f"unix:{path}", timeout=1.0)
    took = []
    for call in (client.plan_stop, client.plan_stop, client.stopped):
        began = now()
        with pytest.raises(Unreachable):
            await call(PLACEMENT)
        took.append(now() - began)
    assert took[0] >= 1.0 > took[1] + took[2]
    server = HTTPServer(Application([(".*", Scripted)]))
    server.add_socket(unix_sockets.listening(path))
    await client.stopped(PLACEMENT)
    server.stop()
    began = now()
    with pytest.raises(Unreachable):
        await client.stopped(PLACEMENT)
    assert now() - began >= 1.0
    client.close()


async def test_progress_yields_events_as_they_come_and_says_when_it_breaks(client):
    async def stream(handler):
        for title in ("one", "two"):
            line = json.dumps({"step": {"step": title, "title": title}}).encode()
            handler.write(line + b"\n\n")
            await handler.flush()
        await asyncio.sleep(0.1)  # what was sent has arrived
        handler.request.connection.stream.close()

    ANSWERS["progress"] = stream
    seen = []

    async def listen():
        async for event in client.progress(KEY):
            seen.append(event.step.title)  # noqa: PERF401 - it ends with an error

    with pytest.raises(Unreachable):
        await listen()
    assert seen == ["one", "two"]
    assert SEEN[0][0].endswith("/progress/a%2Fb/-")


async def test_service_that_is_being_started_is_asked_again(client, monkeypatch):
    monkeypatch.setattr(service, "STARTING_PAUSE", 0.01)
    starting = codec.encode(codec.failure_of(Unreachable(Reason.SERVICE_STARTING)))
    answers = [(503, starting), (503, starting), (200, b'{"action": "cold"}')]

    async def in_turn(handler):
        handler.told(*answers.pop(0))

    ANSWERS["plan-start"] = in_turn
    assert (await client.plan_start(PLACEMENT)).action == "cold"
    assert len(SEEN) == 3


async def test_service_that_cannot_work_is_asked_once_and_says_why(client):
    broken = Unreachable(Reason.SERVICE_BROKEN, why="A setting is wrong.")
    ANSWERS["plan-start"] = (503, codec.encode(codec.failure_of(broken)))
    with pytest.raises(Unreachable, match="A setting is wrong") as caught:
        await client.plan_start(PLACEMENT)
    assert caught.value.reason is Reason.SERVICE_BROKEN
    assert len(SEEN) == 1


async def test_service_that_never_comes_up_is_not_waited_for_for_ever(
    client, monkeypatch
):
    monkeypatch.setattr(service, "STARTING_PAUSE", 0.01)
    monkeypatch.setattr(service, "STARTING_LIMIT", 0.05)
    starting = Unreachable(Reason.SERVICE_STARTING)
    ANSWERS["plan-start"] = (503, codec.encode(codec.failure_of(starting)))
    with pytest.raises(Unreachable) as caught:
        await client.plan_start(PLACEMENT)
    assert caught.value.reason is Reason.SERVICE_STARTING

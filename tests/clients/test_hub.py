"""The Hub's client: what each answer of the Hub means to us."""

import json

import pytest
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.models import HubState, SessionKey
from jupyterhub_gpu_reclaim.service.clients.hub import HubClient
from tests.support.served import served

KEY = SessionKey("ada@x", "big one")


class HubThatAnswers(RequestHandler):
    """With whatever a test has laid out for method and path."""

    def initialize(self, answers, asked) -> None:
        self.answers, self.asked = answers, asked

    def prepare(self) -> None:
        self.asked.append((self.request.method, self.request.path, self.request.body))
        key = f"{self.request.method} {self.request.uri}"
        status, body = self.answers.get(key, (404, {"status": 404, "message": "no"}))
        self.set_status(status)
        self.finish(json.dumps(body) if status != 204 else None)


@pytest.fixture
async def hub():
    answers: dict = {}
    asked: list = []
    bound = {"answers": answers, "asked": asked}
    async with served(Application([(".*", HubThatAnswers, bound)])) as port:
        client = HubClient(f"http://127.0.0.1:{port}/hub/api", "t", quick=2, slow=2)
        client.answers, client.asked = answers, asked
        yield client
        client.close()


@pytest.mark.parametrize(
    ("model", "state"),
    [
        ({"ready": True, "pending": None}, HubState.RUNNING),
        ({"ready": False, "pending": "spawn"}, HubState.SPAWNING),
        ({"ready": False, "pending": "stop"}, HubState.STOPPING),
        ({"ready": False, "pending": "check"}, HubState.UNSETTLED),
        ({"ready": False, "pending": "rename"}, HubState.UNSETTLED),
        ({"ready": False, "pending": None, "stopped": True}, HubState.STOPPED),
    ],
)
async def test_hub_server_model_becomes_a_state(hub, model, state):
    user = {"name": KEY.user, "servers": {"big one": {"name": "big one", **model}}}
    hub.answers["GET /hub/api/users/ada@x"] = (200, user)
    assert await hub.server(KEY) is state
    assert await hub.server(SessionKey("ada@x")) is HubState.STOPPED
    assert await hub.server(SessionKey("nobody")) is HubState.STOPPED


async def test_hub_that_hides_its_servers_has_not_said_that_there_are_none(hub):
    hub.answers["GET /hub/api/users/ada@x"] = (200, {"name": KEY.user})
    query = "GET /hub/api/users?state=active&offset=0&limit=200"
    hub.answers[query] = (200, {"items": [{"name": "a"}], "_pagination": {}})
    with pytest.raises(Unreachable) as refused:
        await hub.server(KEY)
    assert "`servers`" in refused.value.detail
    with pytest.raises(Unreachable):
        await hub.servers()


async def test_hub_servers_reads_all_pages_and_leaves_stopped_ones_out(hub):
    first = {
        "items": [{"name": "a", "servers": {"": {"ready": True}, "x": {}}}],
        "_pagination": {"offset": 0, "next": {"offset": 200, "limit": 200}},
    }
    second = {
        "items": [{"name": "b", "servers": {"": {"pending": "spawn"}}}],
        "_pagination": {"next": None},
    }
    query = "GET /hub/api/users?state=active&offset={}&limit=200"
    hub.answers[query.format(0)] = (200, first)
    hub.answers[query.format(200)] = (200, second)
    assert await hub.servers() == {
        SessionKey("a"): HubState.RUNNING,
        SessionKey("b"): HubState.SPAWNING,
    }


@pytest.mark.parametrize(
    ("sent", "options"),
    [
        (
            {
                "profile": "h100-big",
                "gpu_reclaim": ["off"],
                "flag": True,
                "deep": {"a": [1, {}]},
                "many": [None, 7, "x" * 10_000],
            },
            {
                "profile": ["h100-big"],
                "gpu_reclaim": ["off"],
                "flag": ["true"],
                "deep": [],
                "many": ["7", "x" * 10_000],
            },
        ),
        (["no", "dictionary"], {}),
    ],
)
async def test_options_may_be_anything_that_somebody_has_sent(hub, sent, options):
    server = {"name": "big one", "ready": True, "user_options": sent}
    found = {"items": [{"name": KEY.user, "servers": {"big one": server}}]}
    query = "GET /hub/api/users?state=active&offset=0&limit=200"
    hub.answers[query] = (200, found | {"_pagination": {}})
    await hub.servers()
    assert hub.options(KEY) == options


@pytest.mark.parametrize("status", [202, 204, 404])
async def test_hub_stop_that_is_taken_or_needless_is_fine(hub, status):
    hub.answers["DELETE /hub/api/users/ada@x/servers/big%20one"] = (status, {})
    await hub.stop(KEY)
    assert hub.asked[-1][0] == "DELETE"


@pytest.mark.parametrize("status", [201, 202])
async def test_hub_start_sends_no_options(hub, status):
    hub.answers["POST /hub/api/users/ada@x/server"] = (status, {})
    await hub.start(SessionKey("ada@x"))
    assert hub.asked == [("POST", "/hub/api/users/ada@x/server", b"")]


@pytest.mark.parametrize(
    ("status", "message", "retryable"),
    [
        (400, "ada is pending stop", True),
        (500, "oops", True),
        (429, "too many", True),
        (403, "not allowed", False),
        (400, "Named servers are not enabled.", False),
    ],
)
async def test_hub_start_refused_says_whether_to_try_again(
    hub, status, message, retryable
):
    body = {"status": status, "message": message}
    hub.answers["POST /hub/api/users/ada@x/servers/big%20one"] = (status, body)
    with pytest.raises(Refused) as caught:
        await hub.start(KEY)
    assert caught.value.retryable is retryable
    assert message in caught.value.detail


async def test_hub_start_of_a_running_server_is_fine(hub):
    body = {"status": 400, "message": "ada is already running"}
    hub.answers["POST /hub/api/users/ada@x/servers/big%20one"] = (400, body)
    await hub.start(KEY)


async def test_hub_that_is_not_there_or_denies_us_is_unreachable(hub):
    hub.answers["GET /hub/api/users/ada@x"] = (403, {"message": "no scope"})
    with pytest.raises(Unreachable) as caught:
        await hub.server(KEY)
    assert "no scope" in caught.value.detail
    hub.answers["GET /hub/api/users/ada@x"] = (200, ["no user"])
    with pytest.raises(Unreachable):
        await hub.server(KEY)
    hub.answers["DELETE /hub/api/users/ada@x/server"] = (503, {})
    with pytest.raises(Unreachable):
        await hub.stop(SessionKey("ada@x"))
    nobody = HubClient("http://127.0.0.1:9/hub/api", "t", quick=1)
    with pytest.raises(Unreachable):
        await nobody.servers()
    nobody.close()

"""The calls of the spawner: its own secret, the plans, the stream of steps."""

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
from jupyterhub_gpu_reclaim.common.errors import Refused, RestoreFailed
from jupyterhub_gpu_reclaim.common.models import (
    Event,
    Identity,
    Placement,
    SessionKey,
    StartPlan,
    Step,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.client import ServiceClient

ADA = SessionKey("ada", "train")
GONE = Deletion(user="ada", server="train", order="o1")
PLACE = Placement(key=ADA, incarnation="i2", checkpoint="c1")
STEPS = [
    Event(step=Step(step="open", title="Opening", state="done")),
    Event(step=Step(step="memory", title="Memory", state="done", bytes=7)),
]


@pytest.fixture
def client(service):
    made = ServiceClient(service.socket)
    yield made
    made.close()


@pytest.mark.parametrize(
    "token", ["", "token-ada", "token-root", "spawner-secret-of-the-tests"]
)
@pytest.mark.parametrize("path", ["plan-start", "placed", "release", "forget"])
async def test_spawner_call_is_not_there_by_tcp(service, failure, token, path):
    body = msgspec.to_builtins(PLACE)
    response = await service.call(f"api/spawner/{path}", token, "POST", body)
    assert failure(response, 404).code == "invalid"
    response = await service.call("api/spawner/progress/ada/train", token)
    assert response.code == 404
    assert service.control.calls == []


async def test_secret_of_tabs_opens_no_call_for_people(service):
    secret = service.context.spawner_token.decode()
    assert (await service.call("api/sessions", secret)).code == 401


async def test_plan_start_carries_the_login_of_the_saved_session(service, client):
    identity = Identity(api_token="old", port=4711)
    service.control.plan = StartPlan(
        action="restore", checkpoint="c1", identity=identity
    )
    plan = await client.plan_start(PLACE)
    assert plan.identity == identity
    assert service.control.calls == [("plan_start", PLACE)]


async def test_refusal_arrives_in_the_words_of_the_service(client):
    with pytest.raises(Refused) as caught:
        await client.release(PLACE)
    assert caught.value.reason is Reason.NOT_CAPTURED
    assert caught.value.message == Reason.NOT_CAPTURED.sentence()


async def test_calls_without_an_answer_pass_the_placement_on(service, client):
    await client.placed(PLACE)
    await client.cancelled(PLACE)
    await client.stopped(PLACE)
    await client.forget(GONE)
    assert service.control.calls == [
        ("placed", PLACE),
        ("cancelled", PLACE),
        ("stopped", PLACE),
        ("forget", GONE),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"key": {"user": "ada"}, "incarnation": "../etc"},
        {"key": "ada", "incarnation": "i1"},
        [],
        None,
    ],
)
async def test_placement_that_does_not_fit_is_a_bad_request(service, failure, body):
    response = await service.spawner("placed", body)
    assert failure(response, 400).code == "invalid"
    assert service.control.calls == []


@pytest.mark.parametrize("order", ["../x", "a\x00b", "x" * 65, 7])
async def test_deletion_whose_order_is_no_name_is_a_bad_request(
    service, failure, order
):
    response = await service.spawner("forget", {"user": "ada", "order": order})
    assert failure(response, 400).code == "invalid"
    assert service.control.calls == []


async def test_progress_gives_the_steps_after_those_already_seen(service, client):
    service.control.put("ada", "train")
    service.control.events = list(STEPS)


async def test_progress_of_no_session_is_not_found(service, failure):
    response = await service.spawner("progress/ada/train", None, "GET")
    assert failure(response, 404).code == "unknown_session"


async def test_progress_that_fails_on_the_way_ends_with_the_failure(service, client):
    service.control.put("ada", "train")
    error = RestoreFailed(Reason.RESTORE_FAILED, why="no memory")
    service.control.events = [*STEPS, error]
    events = [event async for event in client.progress(ADA)]
    assert events == [*STEPS, Event(failure=codec.failure_of(error))]

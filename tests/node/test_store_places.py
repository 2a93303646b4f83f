"""A real session saved into an object store."""

import json
import socket
import time

import pytest

from tests.support.agent import PATIENCE, goes_on
from tests.support.object_store import LOGIN, served


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from served(tmp_path_factory)


@pytest.fixture
def s3(server):
    server.bucket("sessions")
    yield server
    for name in names(server):
        server.client.delete_object(Bucket="sessions", Key=name)
    server.client.delete_bucket(Bucket="sessions")


@pytest.fixture
def configured(agent, folder, s3):
    """The agent, started anew with a store in the bucket."""

    def configured(**more):
        settings = {
            "store_options": s3.options,
            "store_options_file": str(s3.options_file),
            **more,
        }
        lines = [f"c.AgentApp.{name} = {value!r}" for name, value in settings.items()]
        path = folder / "agent.py"
        path.write_text("\n".join(["c = get_config()", *lines]))
        agent.kill()
        if agent.store != "s3://sessions/hub":  # a first start
            (folder / "master.key").unlink()
        agent.store = "s3://sessions/hub"
        agent.start(f"--config={path}")
        return agent

    yield configured
    agent.post("/v1/checkpoints/cp-1/discard")
    agent.kill()  # before the server, for which it would wait


def names(s3) -> list[str]:
    found = s3.client.list_objects_v2(Bucket="sessions").get("Contents", [])
    return [each["Key"] for each in found]


def in_bucket(s3) -> list[str]:
    return [name.removeprefix("hub/") for name in names(s3)]


def test_session_comes_back_from_an_object_store(configured, counter, places, s3):
    agent = configured()
    agent.captured(counter, "cp-1")
    assert "manifests/cp-1" in in_bucket(s3)
    agent.release(counter, "cp-1")
    assert not counter.alive
    agent.kill()
    agent = configured()
    holding = agent.come_back(places("hold"), "cp-1")
    assert goes_on(holding)
    assert [one["id"] for one in agent.get("/v1/checkpoints").json()] == ["cp-1"]
    log = agent.log.read_text()
    assert "a-very-secret-key" not in log
    assert "Traceback" not in log


@pytest.mark.long
def test_agent_whose_store_never_answers_ends_in_its_time(agent, folder):
    """Its sweep hangs in a call that is given up after two minutes only."""
    agent.kill()
    login = folder / "login.json"
    with socket.create_server(("127.0.0.1", 0)) as hole:
        endpoint = f"http://127.0.0.1:{hole.getsockname()[1]}"
        login.write_text(json.dumps({"endpoint": endpoint, **LOGIN}))
        login.chmod(0o600)
        agent.store = "s3://sessions/hub"
        agent.start(f"--AgentApp.store_options_file={login}")
        begun = time.monotonic()
        assert agent.terminate() == 0
    assert time.monotonic() - begun < PATIENCE
    assert "exiting although the store" in agent.log.read_text()

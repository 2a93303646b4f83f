"""A real session saved into an object store, with and without a disk in front of it."""

from __future__ import annotations

import json
import shutil
import socket
import time

import pytest

from jupyterhub_gpu_reclaim.node.operations.known_store import KnownStore
from tests.support.agent import PATIENCE, goes_on, wait_for
from tests.support.long_stories import but
from tests.support.object_store import LOGIN, served


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from served(tmp_path_factory)


@pytest.fixture
def s3(server):
    """With an empty bucket."""
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
        if agent.store != "s3://sessions/hub":  # no store was known before
            (folder / "state" / "store.json").unlink()
        agent.store = "s3://sessions/hub"
        agent.start(f"--config={path}")
        return agent

    yield configured
    agent.delete("/v1/checkpoints/cp-1")
    agent.kill()  # before the server, for which it would wait


def names(s3) -> list[str]:
    found = s3.client.list_objects_v2(Bucket="sessions").get("Contents", [])
    return [each["Key"] for each in found]


def in_bucket(s3) -> list[str]:
    return [name.removeprefix("hub/") for name in names(s3)]


@pytest.mark.parametrize(
    "means",
    but(["store only", "local", "remote"], "local"),
)
def test_session_comes_back_from_the_store_when_the_disk_is_lost(
    configured, counter, places, folder, s3, means
):
    node = folder / "node"
    tiers = {"store_local_dir": str(node), "commit_means": means}
    agent = configured(**(tiers if means != "store only" else {}))
    captured = agent.capture(counter, "cp-1")
    assert captured[-1]["checkpoint"]["id"] == "cp-1", captured[-1]
    if means == "local":
        wait_for(lambda: "manifests/cp-1" in in_bucket(s3))
    assert "manifests/cp-1" in in_bucket(s3)
    agent.post(f"/v1/sessions/{counter.incarnation}/release", {"checkpoint": "cp-1"})
    assert not counter.alive
    agent.kill()
    if node.exists():
        assert list(node.rglob("manifests/cp-1"))
        shutil.rmtree(node)
    agent = configured(**(tiers if means != "store only" else {}))
    if means != "store only":
        refused = agent.get("/v1/checkpoints").json()
        assert refused["code"] == "store_absent"
        assert "folder in front of it is not mounted" in refused["message"]
        known = KnownStore(folder / "state")
        known.adopt(known.word().store, 0)  # ``store adopt``: the disk is a new one
        agent.words = known.word().word
    holding = places("hold")
    restored = agent.restore(holding, "cp-1")
    assert restored[-1]["tree"]["state"] == "running", restored[-1]
    assert goes_on(holding)
    assert [one["id"] for one in agent.get("/v1/checkpoints").json()] == ["cp-1"]
    log = agent.log.read_text()
    assert "a-very-secret-key" not in log
    assert "Traceback" not in log


def test_session_is_saved_and_comes_back_while_the_store_is_away(
    configured, counter, places, folder, s3
):
    """What only the folder of the machine has is sent when the store answers again."""
    tiers = {"store_local_dir": str(folder / "node"), "commit_means": "local"}
    nowhere = {**s3.options, "endpoint": "http://127.0.0.1:1"}
    configured(**tiers)  # it was there once
    agent = configured(**tiers, store_options=nowhere)
    captured = agent.capture(counter, "cp-1")
    assert captured[-1]["checkpoint"]["id"] == "cp-1", captured[-1]
    agent.post(f"/v1/sessions/{counter.incarnation}/release", {"checkpoint": "cp-1"})
    assert not counter.alive
    holding = places("hold")
    restored = agent.restore(holding, "cp-1")
    assert restored[-1]["tree"]["state"] == "running", restored[-1]
    assert goes_on(holding)
    assert in_bucket(s3) == ["identity"]
    configured(**tiers)
    wait_for(lambda: "manifests/cp-1" in in_bucket(s3))
    wait_for(lambda: "writing/cp-1" not in in_bucket(s3))


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

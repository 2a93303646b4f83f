"""A server that speaks TLS is refused before anything of its session is touched."""

import pytest

from tests.support.agent import wait_for

pytestmark = pytest.mark.shares_an_agent


def test_capture_server_behind_tls_is_refused_and_left_alone(agent, places):
    url = "https://127.0.0.1:1/user/ann/"
    place = places("start", "sleep", "1000", env={"JUPYTERHUB_SERVICE_URL": url})
    wait_for(lambda: place.tree.server)
    events = agent.capture(place, "cp")
    assert events[-1]["failure"]["code"] == "server_tls", events[-1]
    assert agent.tree(place)["state"] == "running"
    assert agent.get("/v1/checkpoints").json() == []
    assert place.alive

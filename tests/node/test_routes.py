"""The agent's calls: who may ask, what they may say, and what errors look like."""

import pytest

from tests.support.agent import refused_agent

pytestmark = pytest.mark.shares_an_agent

UNKNOWN = "/v1/sessions/nobody-knows-this"


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer wrong", "Basic {token}", "Bearer {token}x", "{token}"],
)
@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/samples", "/nothing-here"])
def test_call_without_the_token_is_refused(agent, header, path):
    with agent.client() as client:
        client.headers["Authorization"] = header.format(token=agent.token)
        response = client.get(path)
    assert response.status_code == 401
    assert response.json()["code"] == "forbidden"


@pytest.mark.parametrize("header", ["", "Bearer wrong"])
def test_probes_without_token_are_answered_and_told_nothing(agent, header):
    with agent.client() as client:
        client.headers["Authorization"] = header
        health, readiness = client.get("/healthz"), client.get("/readyz")
    assert (health.status_code, health.json()) == (200, {})
    assert (readiness.status_code, readiness.json()) == (200, {"ready": True})


def test_token_file_is_made_closed_to_others(agent):
    assert (agent.folder / "token").stat().st_mode & 0o777 == 0o600
    assert (agent.folder / "agent.sock").stat().st_mode & 0o777 == 0o600
    assert agent.token not in agent.log.read_text()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/capture", b"no json"),
        ("/capture", b"[]"),
        ("/capture", b"{}"),
        ("/capture", b'{"checkpoint": "../../etc"}'),
        ("/capture", b'{"checkpoint": 5}'),
        ("/capture", b'{"checkpoint": "cp", "generation": "x"}'),
        ("/restore", b'{"checkpoint": ""}'),
        ("/release", b"\xff\xfe"),
        ("/release", b"[" * 30_000),
    ],
)
def test_call_with_a_bad_body_names_the_fault(agent, path, body):
    with agent.client() as client:
        response = client.post(UNKNOWN + path, content=body)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid"
    assert "Traceback" not in response.text


def test_call_with_a_huge_body_is_refused(agent):
    with agent.client() as client:
        response = client.post(UNKNOWN + "/capture", content=b" " * 1_000_000)
    assert response.status_code == 413


@pytest.mark.parametrize("path", ["/v1/sessions/a%2Fb", "/v1/", "/v1/sessions/../x"])
def test_path_that_is_none_is_not_found(agent, path):
    assert agent.get(path).status_code == 404


def test_path_of_another_protocol_is_refused_by_a_sentence(agent):
    answer = agent.get("/v2/status")
    assert (answer.status_code, answer.json()["code"]) == (400, "other_version")
    assert answer.json()["message"] == (
        "The service's request has version 2; this release reads version 1 alone."
    )


def test_wrong_method_is_refused(agent):
    assert agent.delete("/v1/sessions").status_code == 405


@pytest.mark.parametrize("name", ["two\nlines", "x" * 256, "\u202eturned", 7])
def test_save_point_of_a_name_that_cannot_be_is_refused(agent, counter, name):
    body = {"checkpoint": "c", "generation": 1, "name": name}
    with agent.client() as client:
        path = f"/v1/sessions/{counter.incarnation}/save"
        assert client.post(path, json=body).status_code == 400
    assert agent.get("/v1/checkpoints").json() == []


def test_second_agent_on_the_same_state_folder_is_refused(agent):
    said = refused_agent(agent.folder, *agent.popen.args[1:])
    assert "another agent runs on" in said
    assert "Traceback" not in said
    assert agent.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--listen=0.0.0.0:0", "needs TLS"),
        ("--listen=127.0.0.1:0", "needs TLS"),
        ("--listen=nonsense", "expected unix:PATH or ADDRESS:PORT"),
        ("--AgentApp.certificate=/nowhere.pem", "certificate"),
        ("--config=/nowhere.py", "no configuration file"),
        ("--AgentApp.dump_seconds=-1", "dump_seconds"),
    ],
)
def test_agent_with_a_bad_setting_says_so_and_ends(folder, option, sentence):
    options = {
        "--AgentApp.store_url": f"{folder}/store",
        "--AgentApp.token_file": f"{folder}/token",
        "--listen": f"unix:{folder}/bad.sock",
    }
    name, _, value = option.partition("=")
    options[name] = value
    line = [f"{name}={value}" for name, value in options.items()]
    said = refused_agent(folder, *line, state="bad")
    assert sentence in said
    assert "Traceback" not in said

"""The extension of a session's own server: it hands a tab its pass, and nobody else."""

import contextlib
import filecmp
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import requests

from demo.stack import free_port
from jupyterhub_gpu_reclaim.common.auth import tab_tokens
from jupyterhub_gpu_reclaim.common.models import SessionKey
from tests.support.hub import wait_until

SECRET = b"secret-of-spawner-and-service"
CONFIG = Path("etc/jupyter/jupyter_server_config.d/jupyterhub-gpu-reclaim.json")


def test_installed_configuration_is_the_one_of_this_checkout():
    source = Path(__file__).parents[2] / "jupyterhub_gpu_reclaim/lab/server_config"
    assert filecmp.cmp(source / CONFIG.name, Path(sys.prefix) / CONFIG, shallow=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A Jupyter server as a session has it: its address, without a Hub."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    ada = SessionKey("ada", "train")
    key = tab_tokens.session_key(SECRET, ada, "5e55", time.time())
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser"),
            *(f"--port={port}", "--ServerApp.base_url=/user/ada/train/"),
            "--IdentityProvider.token=token-of-ada",
        ],
        env={**os.environ, "HOME": str(folder), tab_tokens.VARIABLE: key},
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/user/ada/train/"

    def answers() -> bool:
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{url}api", timeout=60).ok
        return False

    try:
        wait_until(answers, 60)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def test_who_may_use_the_server_gets_a_pass_of_its_session(server):
    headers = {"Authorization": "token token-of-ada"}
    answer = requests.post(f"{server}gpu-reclaim/pass", headers=headers, timeout=20)
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "no-store"
    found = tab_tokens.read(SECRET, answer.json()["pass"], time.time())
    assert found is not None
    assert found.key == SessionKey("ada", "train")


def test_request_for_a_pass_is_no_use_of_the_session(server):
    headers = {"Authorization": "token token-of-ada"}

    def used() -> str:
        told = requests.get(f"{server}api/status", headers=headers, timeout=60).json()
        return str(told["last_activity"])

    before = used()
    requests.post(f"{server}gpu-reclaim/pass", headers=headers, timeout=20)
    assert used() == before


def test_without_the_login_or_its_xsrf_token_there_is_no_pass(server):
    url = f"{server}gpu-reclaim/pass"
    assert requests.post(url, timeout=20).status_code == 403
    with requests.Session() as browser:
        browser.get(f"{server}?token=token-of-ada", timeout=20)
        assert browser.get(f"{server}api/status", timeout=20).ok  # logged in
        assert browser.post(url, timeout=20).status_code == 403
        assert browser.get(url, timeout=20).status_code == 405
        xsrf = browser.cookies.get("_xsrf", path="/user/ada/train/") or ""
        good = browser.post(url, headers={"X-XSRFToken": xsrf}, timeout=20)
        assert good.status_code == 200, good.text


def call(server: str, method: str, path: str, body: object = None) -> requests.Response:
    headers = {"Authorization": "token token-of-ada"}
    url = f"{server}api/{path}"
    return requests.request(method, url, headers=headers, json=body, timeout=60)


@pytest.fixture
def kernel(server):
    """A kernel of mine.ipynb; none is left at the end."""
    made = call(server, "POST", "sessions", asked("mine.ipynb"))
    assert made.status_code == 201
    yield made.json()
    for one in call(server, "GET", "kernels").json():
        call(server, "DELETE", f"kernels/{one['id']}")


def asked(path: str, name: str = "mine.ipynb", **more: object) -> dict[str, object]:
    """What JupyterLab sends for a kernel of a notebook."""
    wanted = {"path": path, "name": name, "type": "notebook"}
    return {**wanted, "kernel": {"name": "python3"}, **more}


def kernels(server: str) -> list[str]:
    return [one["id"] for one in call(server, "GET", "kernels").json()]


def test_page_that_does_not_know_the_kernel_yet_gets_it_and_cannot_end_it(
    server, kernel
):
    """What JupyterLab 4.6 does when a cell is run before it has read the sessions."""
    mine = kernel["kernel"]["id"]
    made = call(server, "POST", "sessions", asked(str(uuid.uuid4()))).json()
    assert made["kernel"]["id"] == mine
    path = f"sessions/{made['id']}"
    assert call(server, "PATCH", path, {"path": "mine.ipynb"}).ok
    assert call(server, "DELETE", f"sessions/{kernel['id']}").status_code == 204
    assert kernels(server) == [mine]
    assert [s["id"] for s in call(server, "GET", "sessions").json()] == [made["id"]]
    assert call(server, "DELETE", path).status_code == 204
    assert kernels(server) == []


def test_who_wants_another_kernel_gets_one(server, kernel):
    mine = kernel["kernel"]["id"]
    for body in (
        asked("other.ipynb", "other.ipynb"),
        asked(f"folder/{uuid.uuid4()}"),
        asked(str(uuid.uuid4()), "other.ipynb"),
        asked(str(uuid.uuid4()), type="console"),
    ):
        made = call(server, "POST", "sessions", body).json()
        assert made["kernel"]["id"] != mine
    change = {"kernel": {"name": "python3"}}
    changed = call(server, "PATCH", f"sessions/{kernel['id']}", change).json()
    assert changed["kernel"]["id"] != mine

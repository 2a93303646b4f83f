"""The Littlest JupyterHub with our plugin: log in, suspend, resume, restart of the Hub.

Needs a Hub's environment of TLJH with this package in it, made outside of the
repository: ``python -m venv /tmp/tljh``, and with its pip TLJH's checkout, what its
``tljh/requirements-hub-env.txt`` names, and ``".[agent]"``. Then
``GPU_RECLAIM_TLJH=/tmp/tljh``.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HUB_ENV = os.environ.get("GPU_RECLAIM_TLJH", "")
pytestmark = [
    pytest.mark.skipif(not HUB_ENV, reason="GPU_RECLAIM_TLJH names no TLJH"),
    pytest.mark.timeout(300),
]
#: Users are made in copies: the machine's own accounts stay as they are.
MACHINE = """
cp -a /etc "$1/etc" && mkdir "$1/home" "$1/mnt" "$1/run" || exit
touch "$1/mnt/of-the-machine"
for own in etc home mnt run; do mount --bind "$1/$own" "/$own" || exit; done
shift && "$@"
"""


@pytest.fixture(scope="module")
def seen():
    with tempfile.TemporaryDirectory(prefix="littlest-") as name:
        Path(name).chmod(0o755)
        machine = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        machine += ["--mount-proc", "sh", "-c", MACHINE, "machine", name]
        scenario = [sys.executable, "-m", "tests.support.littlest", f"{name}/stack"]
        done = subprocess.run(
            [*machine, *scenario, str(Path(HUB_ENV).absolute())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-8000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_user_is_made_as_tljh_makes_one(seen):
    made, placed = seen["made"], seen["placed"]
    assert made["groups"] == ["jupyterhub-users", "students"]
    assert made["home_mode"][-1] == "0"
    assert placed["user"] == "jupyter-ada"
    assert placed["uid"] == made["uid"]
    assert placed["home"] == "/home/jupyter-ada"
    assert len(placed["groups"]) == 3
    assert placed["shell"] == "/bin/bash"
    assert placed["path"].endswith("/tljh/user/bin")


@pytest.mark.parametrize(
    "when", ["placed", "restarted", "resumed", "resumed after a restart"]
)
def test_limits_hold_and_sudo_is_denied_before_and_after_a_return(seen, when):
    placed = seen[when]
    assert placed["memory"] == 1 << 30
    assert placed["cpu"] == 150_000
    assert placed["no_new_privileges"] == "1"
    assert placed["machine"] == ["of-the-machine"]


@pytest.mark.parametrize("when", ["restarted", "resumed", "resumed after a restart"])
def test_session_is_the_same_process_with_its_variables(seen, when):
    assert seen[when]["same"]
    assert seen["left"] == []


def test_administrator_may_use_sudo(seen):
    assert seen["boss"]["user"] == "jupyter-boss"
    assert seen["boss"]["no_new_privileges"] == "0"
    assert seen["admins"] == ["jupyter-boss"]


def test_limit_that_would_be_lost_leaves_tljhs_own_spawner(seen):
    assert seen["before"]["is a unit"]
    assert "c.SystemdSpawner.slice has no effect" in seen["before"]["log"]


def test_server_of_tljhs_own_spawner_goes_on_and_its_next_start_is_a_session(seen):
    assert seen["before"]["goes on"]
    assert seen["before"]["is a session"] == ["eve"]


def test_service_of_jupyterhub_config_d_is_there_beside_ours(seen):
    assert seen["services"] == ["gpu-reclaim", "grades"]

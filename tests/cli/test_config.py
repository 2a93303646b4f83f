"""``config check``: reads a file as the Hub does, says what is wrong, makes nothing."""

import pytest

from jupyterhub_gpu_reclaim.cli.main import main

HEAD = """
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
from jupyterhub_gpu_reclaim.hub.config import configure
"""


@pytest.fixture
def check(tmp_path, capsys):
    """Checks a configuration with these lines; the exit code and what was said."""

    def run(lines: str) -> tuple[int, str]:
        file = tmp_path / "jupyterhub_config.py"
        file.write_text(HEAD + lines)
        status = main(["config", "check", str(file)])
        return status, capsys.readouterr().out

    return run


def test_check_sound_file_is_fine_and_makes_no_folder(check, tmp_path):
    lines = f"configure(c, state_dir='{tmp_path}/state', idle_after=60)"
    status, said = check(lines)
    assert status == 0
    assert "all settings make sense" in said
    assert not (tmp_path / "state").exists()


def test_check_every_mistake_has_its_line(check, tmp_path):
    status, said = check(
        f"configure(c, state_dir='{tmp_path}/s', idle_after='30m', idel=1,"
        " service_port='x')\n"
        "c.ReclaimMixin.reclaim_service = 1"
    )
    assert status == 1
    lines = said.splitlines()
    assert len(lines) == 4
    assert any("not negative, not" in line for line in lines)
    assert any("takes no idel" in line for line in lines)
    assert any("service_port must be a whole number" in line for line in lines)
    assert any("ReclaimMixin.reclaim_service" in line for line in lines)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("1/0", "line 5: ZeroDivisionError: division by zero"),
        ("import json\njson.loads('')", "line 6: JSONDecodeError: Expecting value"),
        ("configure(c", "line 5: SyntaxError: '(' was never closed"),
        ("raise SystemExit(3)", "line 5: SystemExit: 3"),
        ("c.JupyterHub.port = 'x'", "TraitError: The 'port' trait of a JupyterHub"),
        ("pass", "configure(c) is not called"),
    ],
)
def test_check_file_that_the_hub_cannot_use_says_why(check, lines, said):
    status, told = check(lines)
    assert status == 1
    assert said in told


def test_check_missing_file_is_an_error_in_words(tmp_path, capsys):
    assert main(["config", "check", str(tmp_path / "none.py")]) == 1
    assert "There is no file" in capsys.readouterr().err


def test_check_file_that_takes_long_is_called_good_all_the_same(check, tmp_path):
    """Nothing else ends it: not a limit, not a program of its own that is busy."""
    lines = (
        "import time\ntime.sleep(3); print('what the file says itself')\n"
        f"configure(c, state_dir='{tmp_path}/s')"
    )
    status, said = check(lines)
    assert (status, len(said.splitlines())) == (0, 1)
    assert "all settings make sense" in said


def test_check_one_file_says_nothing_of_the_next(check, tmp_path):
    assert check("configure(c, idle_after=-1)")[0] == 1
    assert check(f"configure(c, state_dir='{tmp_path}/s')")[0] == 0


def test_check_what_takes_sessions_from_us_has_its_line(check, tmp_path):
    status, said = check(
        "c.JupyterHub.spawner_class = 'simple'\n"
        f"configure(c, state_dir='{tmp_path}/s', idle_after=60,\n"
        "    warn_for=90)\n"
        "c.JupyterHub.services = [{'name': 'cull', 'command':\n"
        "    ['jupyterhub-idle-culler', '--max-age=90', '--timeout=30']}]\n"
        "c.JupyterHub.load_roles = []\n"
        "c.JupyterHub.cleanup_servers = True\n"
        "c.Guards.min_age = 3\n"
    )
    assert status == 1
    lines = said.splitlines()
    for words in (
        "SimpleLocalProcessSpawner, which cannot suspend sessions",
        "'cull' ends servers by its own rules, and nothing of them is saved",
        "cleanup_servers is True",
        "c.Guards.min_age has no effect: min_age goes into the call",
    ):
        assert sum(words in line for line in lines) == 1, words
    assert len(lines) == 4


WRAPPER = """
from jupyterhub.spawner import LocalProcessSpawner, Spawner
from jupyterhub_gpu_reclaim.hub.local.spawner import ReclaimLocalSpawner
from traitlets import Type
class WrapSpawner(LocalProcessSpawner):
    child_class = Type(LocalProcessSpawner, Spawner, config=True)
c.JupyterHub.spawner_class = WrapSpawner
c.WrapSpawner.child_class = ReclaimLocalSpawner
"""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (WRAPPER, "WrapSpawner, which cannot suspend sessions"),
        ("c.JupyterHub.spawner_class = 'docker-swarm'", "which cannot suspend sess"),
        ("c.JupyterHub.spawner_class = 'simple'", "which cannot suspend sessions"),
    ],
)
def test_check_spawner_that_suspends_nothing_is_named(check, tmp_path, lines, said):
    """No wrapper hands on what ours says to the Hub, whichever class is inside."""
    status, told = check(f"{lines}\nconfigure(c, state_dir='{tmp_path}/s')")
    assert status == 1
    (line,) = told.splitlines()
    assert said in line
    assert "docs/how-to/another-spawner.md" in line


def test_check_a_logout_that_ends_servers_is_named(check, tmp_path):
    status, said = check(
        f"configure(c, state_dir='{tmp_path}/s')\n"
        "c.JupyterHub.shutdown_on_logout = True"
    )
    assert status == 1
    assert "users who log out end their running servers" in said

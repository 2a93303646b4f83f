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
        " service_port=8000)\n"
        "c.ReclaimMixin.reclaim_service = 1"
    )
    assert status == 1
    lines = said.splitlines()
    assert len(lines) == 4
    assert any("30m is 1800" in line for line in lines)
    assert any("takes no idel" in line for line in lines)
    assert any("8000 is the port of JupyterHub.bind_url" in line for line in lines)
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
        ("configure(c, strict=True, idle_after=-1)", "idle_after must be"),
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
        "    service_options={'ReclaimService.warn_for': 90,\n"
        "                     'ReclaimService.event_log': '/nowhere/events'})\n"
        "c.JupyterHub.services = [{'name': 'cull', 'command':\n"
        "    ['jupyterhub-idle-culler', '--max-age=90', '--timeout=30']}]\n"
        "c.JupyterHub.load_roles = []\n"
        "c.JupyterHub.cleanup_servers = True\n"
        "c.Spawner.args = ['--MappingKernelManager.cull_idle_timeout=30']\n"
        "c.Guards.min_age = 3\n"
    )
    assert status == 1
    lines = said.splitlines()
    for words in (
        "SimpleLocalProcessSpawner, which cannot suspend sessions",
        "'cull' ends every server 90 s after its start",
        "'cull' ends servers after 30 s without use, before they are suspended",
        "cull_idle_timeout is 30 in c.Spawner.args",
        "cleanup_servers is True",
        "warn_for (90) is longer than IdlePolicy.idle_after (60)",
        "event_log: /nowhere/events is in a folder that is not there",
        "c.Guards.min_age must stand above the call",
    ):
        assert sum(words in line for line in lines) == 1, words
    assert len(lines) == 8


def test_check_pages_that_hide_ours_are_named(check, tmp_path):
    folder = tmp_path / "templates"
    folder.mkdir()
    pages = {
        "home": '{% extends "templates/home.html" %}{% block main %}{% endblock %}',
        "not_running": '{% extends "page.html" %}{% block main %}Off{% endblock %}',
        "spawn_pending": '{% extends "nowhere.html" %}',
        "stop_pending": "{% block message %}{% bloc main %}",
        "login": "our own, which hides none of ours",
    }
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text)
    status, said = check(
        f"configure(c, state_dir='{tmp_path}/s')\n"
        f"c.JupyterHub.template_paths = ['{folder}']\n"
    )
    assert status == 1
    first, second, third = said.splitlines()
    assert "not_running.html has no block 'heading' and no block 'message' and" in first
    assert "let it extend 'templates/not_running.html'." in first
    assert "spawn_pending.html cannot be shown: nowhere.html." in second
    assert "stop_pending.html cannot be shown: Encountered unknown tag" in third


#: As ``wrapspawner`` has them, with classes of other projects.
WRAPPERS = """
from jupyterhub.spawner import LocalProcessSpawner, Spawner
from jupyterhub_gpu_reclaim.hub.local.spawner import ReclaimLocalSpawner
from traitlets import List, Type
class SlurmSpawner(LocalProcessSpawner):
    pass
class WrapSpawner(LocalProcessSpawner):
    child_class = Type(LocalProcessSpawner, Spawner, config=True)
class ProfilesSpawner(WrapSpawner):
    profiles = List(config=True)
"""


@pytest.mark.parametrize(
    ("lines", "inner"),
    [
        (
            """
c.JupyterHub.spawner_class = ProfilesSpawner
c.ProfilesSpawner.profiles = [
    ('A', 'a', SlurmSpawner, {}),
    ('B', 'b', ReclaimLocalSpawner, {}),
    ('C', 'c', 'dockerspawner.Swarm', {}),
]""",
            "SlurmSpawner, ReclaimLocalSpawner, dockerspawner.Swarm",
        ),
        (
            """
c.JupyterHub.spawner_class = WrapSpawner
c.WrapSpawner.child_class = ReclaimLocalSpawner""",
            "ReclaimLocalSpawner",
        ),
        ("c.JupyterHub.spawner_class = WrapSpawner", "another spawner"),
    ],
)
def test_check_wrapper_is_named_with_what_it_starts(check, tmp_path, lines, inner):
    """No wrapper hands on what ours says to the Hub, whichever class is inside."""
    status, said = check(f"{WRAPPERS}{lines}\nconfigure(c, state_dir='{tmp_path}/s')")
    assert status == 1
    (line,) = said.splitlines()
    assert f"what it starts ({inner}) is not looked into" in line


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("docker", "with placement='docker' in the call"),
        ("docker-swarm", "its containers may be on another machine than the agent"),
    ],
)
def test_check_advice_is_nothing_that_the_file_does_already(
    check, tmp_path, base, said
):
    lines = (
        f"configure(c, state_dir='{tmp_path}/s', placement='docker')\n"
        f"c.JupyterHub.spawner_class = '{base}'\n"
    )
    status, told = check(lines)
    assert status == 1
    (line,) = told.splitlines()
    assert said in line
    assert "say placement" not in line


HOOKS = """
from jupyterhub.auth import DummyAuthenticator
class Ours(DummyAuthenticator):
    def post_spawn_stop(self, user, spawner):
        pass
c.JupyterHub.authenticator_class = Ours
c.Spawner.post_stop_hook = c.KubeSpawner.modify_pod_hook = print
c.LocalProcessSpawner.pre_spawn_hook = print
"""


def test_check_hooks_are_named_with_what_they_see(check, tmp_path):
    status, said = check(f"{HOOKS}configure(c, state_dir='{tmp_path}/s')")
    assert status == 0
    first, *hooks = [line.partition("config.py: ")[2] for line in said.splitlines()]
    assert first == "all settings make sense"
    names = [line.partition(":")[0] for line in hooks]
    assert names == [
        "c.LocalProcessSpawner.pre_spawn_hook",
        "c.Spawner.post_stop_hook",
        "Ours.post_spawn_stop",
    ]
    assert all(" at a suspend: " in line for line in hooks)
    assert "at a suspend: nothing; at a return: nothing, also" in hooks[1]


def test_check_a_logout_that_ends_servers_is_named(check, tmp_path):
    status, said = check(
        f"configure(c, state_dir='{tmp_path}/s')\n"
        "c.JupyterHub.shutdown_on_logout = True"
    )
    assert status == 1
    assert "users who log out end their running servers" in said

"""``config check``: reads a file as the Hub does, says what is wrong, makes nothing."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from pathlib import Path

import pytest
from jupyterhub import orm

from jupyterhub_gpu_reclaim.cli.main import main
from tests.support import preloaded

HEAD = """
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
from jupyterhub_gpu_reclaim.hub.config import configure
"""


def forked(command, *, capture_output, timeout, check):
    """Run the check's program as ``subprocess.run`` does, the Hub imported already."""
    assert (capture_output, check) == (True, False)
    *_, module, file = command
    with tempfile.TemporaryFile() as said:
        program = preloaded.start(
            f"{module}:main",
            [module, file],
            log=said.fileno(),
            env=dict(os.environ),
            cwd=Path.cwd(),
        )
        status = program.wait(timeout)
        said.seek(0)
        return subprocess.CompletedProcess(command, status, said.read(), b"")


@pytest.fixture
def check_by_command(tmp_path, capsys):
    """Checks a configuration with these lines; the exit code and what was said."""

    def run(lines: str) -> tuple[int, str]:
        file = tmp_path / "jupyterhub_config.py"
        file.write_text(HEAD + lines)
        status = main(["config", "check", str(file)])
        return status, capsys.readouterr().out

    return run


@pytest.fixture
def check(check_by_command, monkeypatch):
    """The same, without the two seconds of CPU that the program's imports take."""
    monkeypatch.setattr(subprocess, "run", forked)
    return check_by_command


def test_check_sound_file_is_fine_and_makes_no_folder(check_by_command, tmp_path):
    lines = f"configure(c, state_dir='{tmp_path}/state', idle_after=60)"
    status, said = check_by_command(lines)
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
        ("1/0", "ZeroDivisionError"),
        ("configure(c", "SyntaxError"),
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


def test_check_what_the_hub_itself_would_refuse_is_found_by_its_own_code(
    check, tmp_path
):
    """A role of the administrator's own for somebody without an account (PAM)."""
    role = {"name": "graders", "users": ["nobody-here"], "scopes": ["self"]}
    status, said = check(
        "c.JupyterHub.authenticator_class = 'pam'\n"
        f"c.JupyterHub.load_roles = [{role!r}]\n"
        f"configure(c, state_dir='{tmp_path}/s', admins=['ada'])\n"
    )
    [line] = said.splitlines()
    assert "would not start: KeyError: User nobody-here does not exist on" in line
    assert status == 1


def test_check_who_has_an_account_at_the_hub_already_is_no_mistake(check, tmp_path):
    """The Hub's own database is looked at, in a copy, and no account is made."""
    database = tmp_path / "jupyterhub.sqlite"
    session = orm.new_session_factory(f"sqlite:///{database}")()
    session.add(orm.User(name="nobody-here"))
    session.commit()
    session.close()
    before = database.read_bytes()
    role = {"name": "graders", "users": ["nobody-here", "eve"], "scopes": ["self"]}
    status, said = check(
        f"c.JupyterHub.db_url = 'sqlite:///{database}'\n"
        "c.JupyterHub.authenticator_class = 'pam'\n"
        "c.LocalAuthenticator.create_system_users = True\n"
        f"c.JupyterHub.load_roles = [{role!r}]\n"
        f"configure(c, state_dir='{tmp_path}/s')\n"
    )
    assert (status, "all settings make sense" in said) == (0, True)
    assert database.read_bytes() == before
    with pytest.raises(KeyError):
        pwd.getpwnam("eve")


def test_check_what_takes_sessions_from_us_has_its_line(check, tmp_path):
    status, said = check(
        "c.JupyterHub.spawner_class = 'simple'\n"
        "c.PAMAuthenticator.pam_normalize_username = True\n"
        "c.JupyterHub.authenticator_class = 'pam'\n"
        f"configure(c, state_dir='{tmp_path}/s', idle_after=60, admins=['no-one'],\n"
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
        "lets nobody in as 'no-one'",
        "warn_for (90) is longer than IdlePolicy.idle_after (60)",
        "event_log: /nowhere/events is in a folder that is not there",
        "c.Guards.min_age must stand above the call",
    ):
        assert sum(words in line for line in lines) == 1, words
    assert len(lines) == 9

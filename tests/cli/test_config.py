"""``config check``: reads a file as the Hub does, says what is wrong, makes nothing."""

from __future__ import annotations

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
    status, said = check(f"configure(c, state_dir='{tmp_path}/state', idle_after=60)")
    assert status == 0
    assert "all settings make sense" in said
    assert not (tmp_path / "state").exists()


def test_check_every_mistake_has_its_line(check, tmp_path):
    status, said = check(
        f"configure(c, state_dir='{tmp_path}/s', idle_after='30m', idel=1,"
        " service_port=8000)\n"
        "c.ReclaimMixin.reclaim_timeout = 'x'"
    )
    assert status == 1
    lines = said.splitlines()
    assert len(lines) == 4
    assert any("30m is 1800" in line for line in lines)
    assert any("takes no idel" in line for line in lines)
    assert any("8000 is the port of JupyterHub.bind_url" in line for line in lines)
    assert any("ReclaimMixin.reclaim_timeout" in line for line in lines)


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

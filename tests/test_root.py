"""What needs root is marked, so that a contributor's command leaves it out."""

import sys
from pathlib import Path

import pytest

from tests.support.ran import ran
from tests.support.root import FILES, FOLDERS, TESTS


@pytest.mark.parametrize("name", sorted(FILES | FOLDERS))
def test_file_that_is_left_to_root_is_there(name: str) -> None:
    assert (TESTS / name).exists()


def test_marker_is_given_by_fixture_by_reason_and_by_file() -> None:
    marked = [
        "node/test_crash.py",
        "spawner/test_session_init.py",
        "checkpoint/test_ports.py",
    ]
    plain = "policy/test_idle.py"
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not root"]
    done = ran([sys.executable, "-m", "pytest", *options, *marked, plain], cwd=TESTS)
    lines = [line for line in done.stdout.splitlines() if "::" in line]
    assert lines, done.stdout
    assert all(Path(line.partition("::")[0]).name == "test_idle.py" for line in lines)

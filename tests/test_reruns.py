"""What the second chance of a test has begun ends, too."""

import subprocess
import sys
from pathlib import Path

MODULE = """
import pytest
tries = []
@pytest.fixture(scope="module")
def stack():
    tries.append(1)
    assert len(tries) > 1
@pytest.fixture(scope="module")
def browser():
    yield
    print("the browser has ended")
def test_at_the_second_try(stack, browser):
    pass
def test_without_them():
    pass
"""


def test_fixture_that_only_the_second_try_has_made_is_ended(tmp_path):
    (tmp_path / "test_one.py").write_text(MODULE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    plugins = ["no:cacheprovider", "tests.support.reruns"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-s", "--reruns", "1"),
            *(word for name in plugins for word in ("-p", name)),
            *("--rootdir", str(tmp_path), str(tmp_path)),
        ],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "2 passed, 1 rerun" in done.stdout, done.stdout + done.stderr
    assert "the browser has ended" in done.stdout

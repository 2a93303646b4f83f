"""Few tests get a second chance, and what it has begun ends, too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import flaky

ROOT = Path(__file__).parents[1]

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


@pytest.mark.long
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
        cwd=ROOT,
        env={name: word for name, word in os.environ.items() if "ADDOPTS" not in name},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "2 passed, 1 rerun" in done.stdout, done.stdout + done.stderr
    assert "the browser has ended" in done.stdout


@pytest.mark.parametrize("name", flaky.FLAKY)
def test_each_with_a_second_chance_exists_and_starts_programs(name):
    path, _, function = name.partition("::")
    assert f"def {function}(" in (ROOT / path).read_text()
    assert Path(path).parts[1] in flaky.PROGRAMS


def test_few_have_a_second_chance():
    assert len(flaky.FLAKY) <= flaky.MOST

"""``etc/containers``: what hadolint says, and what it does not look at.

The images themselves are built nowhere in these tests: there is no registry here.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "etc" / "containers").glob("*/Dockerfile"))
RECIPES.append(ROOT / "tests" / "cluster" / "Dockerfile")


def lines(recipe):
    """Its instructions, with their continuations."""
    text = re.sub(r"^\s*#.*\n", "", recipe.read_text(), flags=re.MULTILINE)
    return re.sub(r"\\\n\s*", "", text).splitlines()


@pytest.fixture(params=RECIPES, ids=lambda path: path.parent.name)
def recipe(request):
    return request.param


def test_hadolint_has_nothing_to_say(recipe):
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [program, "--no-color", "--failure-threshold", "style", recipe],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_every_image_is_pinned_to_a_version(recipe):
    stages = [line.split() for line in lines(recipe) if line.startswith("FROM ")]
    assert stages
    for words in stages:
        assert re.search(r":\d+\.\d+\.\d+", words[1]), words


def test_every_file_that_is_copied_is_there_and_not_left_out(recipe):
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line[1:] for line in ignored if line.startswith("!")]
    for line in lines(recipe):
        if not line.startswith("COPY ") or "--from=" in line:
            continue
        for name in line.split()[1:-1]:
            assert (ROOT / name).exists(), name
            top = name.split("/")[0]
            assert any(fnmatch.fnmatch(top, each.split("/")[0]) for each in kept), name


def test_the_hub_does_not_run_as_root_and_stays_at_the_charts_version():
    [recipe] = [path for path in RECIPES if path.parent.name == "hub"]
    users = [line.split()[1] for line in lines(recipe) if line.startswith("USER ")]
    assert users[-1] == "1000"
    [version] = re.findall(r"k8s-hub:(\S+)", recipe.read_text())
    for values in (ROOT / "helm-values").glob("*.yaml"):
        text = values.read_text()
        for found in re.findall(r"--version (\S+)", text):
            assert found == version, values
        for found in re.findall(r'tag: "(\S+)-0\.', text):
            assert found == version, values

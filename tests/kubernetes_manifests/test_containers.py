"""``etc/containers``: what hadolint says, and what it does not look at.

The images themselves are built nowhere in these tests: there is no registry here.
"""

import fnmatch
import re
import shutil
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tests.support.ran import ran

ROOT = Path(__file__).parents[2]
HUB = ROOT / "etc" / "containers" / "hub"
CHART = Path(__file__).parent / "chart"
RECIPES = sorted((ROOT / "etc" / "containers").glob("*/Dockerfile"))
RECIPES.append(ROOT / "tests" / "cluster" / "Dockerfile")


def lines(recipe):
    text = re.sub(r"^\s*#.*\n", "", recipe.read_text(), flags=re.MULTILINE)
    return re.sub(r"\\\n\s*", "", text).splitlines()


@pytest.fixture(params=RECIPES, ids=lambda path: path.parent.name)
def recipe(request):
    return request.param


def test_hadolint_has_nothing_to_say(recipe):
    program = Path(sys.executable).with_name("hadolint")
    done = ran([program, "--no-color", "--failure-threshold", "style", recipe])
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


def requirements(text):
    """Names with versions of a file of ``pip install -r``."""
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    return dict(line.replace("-", "_").lower().split("==") for line in lines)


@pytest.mark.parametrize("release", ["4.0.0", "4.4.0"])
def test_the_hub_gets_what_its_image_lacks_and_nothing_of_its_own(release):
    """Held against the packages of Zero to JupyterHub's oldest and newest image."""
    ours = requirements((HUB / "packages.txt").read_text())
    theirs = requirements((CHART / f"hub-{release}.txt").read_text())
    assert not set(ours) & set(theirs)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["kubernetes"], *extras["notices"]]
    needed = [Requirement(line) for line in lines]
    while needed:
        one = needed.pop()
        name = one.name.replace("-", "_").lower()
        given = {**theirs, **ours}.get(name)
        assert given is not None, f"{name} is neither in the image nor in ours"
        assert one.specifier.contains(given), f"{one}: {given}"
        if name in ours:  # what the Hub's own need is its chart's affair
            more = map(Requirement, requires(one.name) or ())
            needed += [
                each
                for each in more
                if each.marker is None or each.marker.evaluate({"extra": ""})
            ]


def test_the_hubs_packages_are_for_every_python_that_is_tried():
    recipe = (HUB / "Dockerfile").read_text()
    [given] = re.findall(r"for python in ([\d. ]+);", recipe)
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    matrix = workflow["jobs"]["without-root"]["strategy"]["matrix"]
    assert given.split() == matrix["python"]


def test_the_hubs_own_packages_come_before_ours(tmp_path):
    """As in its pod: ours are in a folder that PYTHONPATH names, and are found last."""
    shutil.copy(HUB / "sitecustomize.py", tmp_path)
    (tmp_path / "packages").mkdir()
    for name in ("yaml", "of_ours_alone"):
        (tmp_path / "packages" / f"{name}.py").write_text("OURS = True\n")
    code = "import of_ours_alone, yaml; print(hasattr(yaml, 'OURS'))"
    done = ran([sys.executable, "-P", "-c", code], env={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_no_recipe_says_which_jupyterhub_a_hub_has(recipe):
    if recipe.parent.name == "hub":
        text = recipe.read_text() + (HUB / "packages.txt").read_text()
        assert not re.search(r"jupyterhub *==|k8s-hub:", text)
        assert lines(recipe)[-2:][0].split() == ["USER", "1000"]

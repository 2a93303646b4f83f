"""What is claimed of versions is what ``make versions`` has run, and it passed."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from benchmarks import versions as tool

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "versions.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: In the sentence that begins the page, by the name that pip has for it.
CLAIMED = {
    "python": "Python",
    "jupyterhub": "JupyterHub",
    "jupyterlab": "JupyterLab",
    "jupyterhub-kubespawner": "KubeSpawner",
    "dockerspawner": "DockerSpawner",
}


def floor(package: str) -> str:
    """The oldest version that pip would take, to its second number."""
    every = [*PROJECT["dependencies"]]
    every += [
        one for extra in PROJECT["optional-dependencies"].values() for one in extra
    ]
    wanted = {f"python{PROJECT['requires-python']}", *every}
    [found] = {
        match[1]
        for one in wanted
        if (match := re.match(rf"{re.escape(package)}>=([\d.]+)", one))
    }
    return f"{found}.0" if "." not in found else found


def tried() -> dict[str, dict[tuple[str, ...], list[str]]]:
    return {table: tool.rows(PAGE, table) for table in tool.TRIED}


@pytest.mark.parametrize("package", CLAIMED)
def test_oldest_version_of_the_page_is_the_one_that_pip_takes(package: str) -> None:
    page = PAGE.read_text()
    sentence = page.partition("\n\n")[2].partition(". ")[0]
    said = re.search(rf"{CLAIMED[package]} ([\d.]+)\s+or\s+later", page)
    assert said, sentence
    assert said[1] == floor(package)


@pytest.mark.parametrize("package", CLAIMED)
def test_oldest_version_has_run(package: str) -> None:
    combinations = [
        one
        for one in tool.COMBINATIONS
        if {"python": one.python, **one.packages}.get(package) == floor(package)
    ]
    assert combinations


@pytest.mark.parametrize("one", tool.COMBINATIONS, ids=lambda one: one.name)
def test_combination_has_a_row_that_passed(one) -> None:
    row = tried()[one.table].get(one.versions)
    assert row, f"run benchmarks.versions --only {one.name} --page"
    count = len(tool.TRIED[one.table])
    for said in row[-count - 1 : -1]:
        assert re.fullmatch(r"passed|(\d+) of \1 passed", said), row


def test_page_has_no_row_that_nobody_would_run_again() -> None:
    for table, rows in tried().items():
        known = {one.versions for one in tool.COMBINATIONS if one.table == table}
        assert set(rows) == known


def test_every_python_of_the_workflow_has_run() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]
    pythons = jobs["without-root"]["strategy"]["matrix"]["python"]
    assert pythons[0] == floor("python")
    assert set(pythons) == {one.python for one in tool.COMBINATIONS}
    assert f"in {' '.join(pythons)};" in (ROOT / "Makefile").read_text()

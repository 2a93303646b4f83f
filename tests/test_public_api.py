"""The declared public API names all that administrators are told to use."""

import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "public-api.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
sys.path.insert(0, str(ROOT / "docs"))
CONFIGURED = runpy.run_path(str(ROOT / "docs" / "generate.py"))["CONFIGURED"]


@pytest.mark.parametrize(
    "name",
    [
        *PROJECT["scripts"],
        *PROJECT["entry-points"]["jupyterhub.spawners"],
        *(one.__name__ for classes in CONFIGURED.values() for one in classes),
    ],
)
def test_name_that_administrators_use_is_declared(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_classes_that_are_declared_can_be_configured() -> None:
    known = {one.__name__ for classes in CONFIGURED.values() for one in classes}
    part = PAGE.partition("Classes, by their name")[2].partition("##")[0]
    declared = set(re.findall(r"`([A-Z]\w+)`", part)) - {"KubeSpawner"}
    assert declared == known


def test_import_that_is_declared_works_and_is_the_one_of_the_guides() -> None:
    (line,) = re.findall(r"^from jupyterhub_gpu_reclaim.*$", PAGE, re.MULTILINE)
    found: dict[str, object] = {}
    exec(line, found)
    assert callable(found["configure"])
    guides = [ROOT / "README.md", *ROOT.glob("docs/tutorial/*.md")]
    shown = "\n".join(guide.read_text() for guide in guides)
    imports = re.findall(r"^ *(from jupyterhub_gpu_reclaim.*)$", shown, re.MULTILINE)
    assert set(imports) == {line}

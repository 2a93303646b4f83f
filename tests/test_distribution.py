"""What pip installs: wheel and sdist are built, and the wheel is tried by itself.

The wheel goes into an empty environment, whose other packages are this one's: nothing
is downloaded, and nothing of ours comes from the checkout.
"""

import json
import subprocess
import sys
import sysconfig
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.ran import ran

ROOT = Path(__file__).parents[1]
PACKAGE = "jupyterhub_gpu_reclaim"
PROGRAMS = ["jupyterhub-gpu-reclaim", "jupyterhub-gpu-reclaim-agent"]


def tool(command: list[str]) -> subprocess.CompletedProcess[str]:
    return ran(command, cwd="/")


def run(*command: object) -> str:
    done = tool([str(part) for part in command])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("hatch_vcs") is None:
        pytest.skip("needs hatch-vcs: scripts/bootstrap test")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", f"--outdir={folder}", ROOT)
    return folder


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment into which nothing but the wheel was installed."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    options = ("--no-deps", "--no-index", "--no-compile", "-q")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A folder from a .pth file is searched last, and its own .pth files are not read:
    # the checkout's editable install is out of sight.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


#: What is asked in the environment, each by code that sets ``answer``.
QUESTIONS = {
    "file": f"import {PACKAGE} as p; answer = p.__file__",
    "spawners": """
from importlib.metadata import entry_points
found = {one.name: one.load() for one in entry_points(group="jupyterhub.spawners")}
names = "gpu-reclaim", "gpu-reclaim-local"
answer = [hasattr(found[name], "start") for name in names]
""",
    "hub": f"""
from traitlets.config import Config
from {PACKAGE}.hub.config import configure
from {PACKAGE}.hub.pages import TEMPLATES
from {PACKAGE}.hub.self_check import found_wrong
c = Config()
configure(c, state_dir=STATE)
assert found_wrong(c) == []
(service,) = c.JupyterHub.services
answer = [str(TEMPLATES), service["command"][0]]
""",
    "lab": """
from jupyter_core.paths import jupyter_path
from jupyterlab_server.config import get_federated_extensions
extensions = get_federated_extensions(jupyter_path("labextensions"))
found = extensions["jupyterhub-gpu-reclaim"]
answer = [found["ext_path"], found["jupyterlab"]["_build"]["load"]]
""",
    "server": """
import importlib, sys
from jupyter_server.extension.config import ExtensionConfigManager
from pathlib import Path
folder = Path(sys.prefix, "etc", "jupyter")
manager = ExtensionConfigManager(read_config_path=[str(folder)])
found = manager.get_jpserver_extensions()
answer = [found, [hasattr(importlib.import_module(name),
    "_jupyter_server_extension_points") for name in found]]
""",
}
#: Answers all questions in one program; one that fails is answered by its traceback.
PROGRAM = """
import json, sys, traceback
questions, state = json.loads(sys.argv[1]), sys.argv[2]
answers = {}
for name, code in questions.items():
    scope = {"STATE": state}
    try:
        exec(code, scope)
        answers[name] = scope["answer"]
    except Exception:
        answers[name] = traceback.format_exc()
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(
    environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    state = tmp_path_factory.mktemp("state") / "state"
    python = environment / "bin" / "python"
    said = run(python, "-P", "-c", PROGRAM, json.dumps(QUESTIONS), state)
    return dict(json.loads(said))


def shipped(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_has_every_file_of_the_package(
    environment: Path, answers: dict[str, Any]
) -> None:
    installed = Path(answers["file"]).parent
    assert installed.is_relative_to(environment)
    assert shipped(installed) == shipped(ROOT / PACKAGE)


def test_wheel_has_nothing_beside_the_package(environment: Path) -> None:
    (packages,) = environment.glob("lib/python*/site-packages")
    names = {path.name for path in packages.iterdir() if path.suffix != ".dist-info"}
    assert names == {PACKAGE, "others.pth"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_of_the_wheel_says_its_version(environment: Path, program: str) -> None:
    (wheel,) = environment.glob("lib/python*/site-packages/*.dist-info")
    version = wheel.name.removesuffix(".dist-info").partition("-")[2]
    assert run(environment / "bin" / program, "--version").split()[-1] == version


def test_spawners_of_the_wheel_are_known_by_name(answers: dict[str, Any]) -> None:
    assert answers["spawners"] == [True, True]


def test_hub_that_the_wheel_configures_has_the_pages_and_the_service(
    environment: Path, answers: dict[str, Any]
) -> None:
    pages, command = answers["hub"]
    assert Path(pages).is_relative_to(environment)
    assert shipped(Path(pages)) >= {"home.html", "spawn_pending.html"}
    assert Path(command).is_relative_to(environment)


def test_jupyterlab_finds_the_extension_of_the_wheel(
    environment: Path, answers: dict[str, Any]
) -> None:
    path, entry = answers["lab"]
    assert Path(path).is_relative_to(environment)
    assert (Path(path) / entry).is_file()


def test_jupyter_server_finds_the_extension_of_the_wheel(
    answers: dict[str, Any],
) -> None:
    found, points = answers["server"]
    assert list(found.values()) == points == [True]


def test_wheel_brings_what_administrators_copy(environment: Path) -> None:
    shared = environment / "share" / "jupyterhub-gpu-reclaim"
    assert shipped(shared) == shipped(ROOT / "etc")


def test_sdist_has_what_a_packager_needs(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert names >= {"LICENSE", "README.md", "CHANGELOG.md", "tests/conftest.py"}

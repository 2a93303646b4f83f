"""One whole pass for each combination of versions: docs/reference/versions.md.

    sudo .venv/bin/python -m benchmarks.versions FOLDER python3.11 python3.13
    .venv/bin/python -m benchmarks.versions FOLDER --page docs/reference/versions.md

Each combination of :data:`COMBINATIONS` whose Python is among those given gets an
environment below FOLDER with the wheel of this checkout, and in it

* ``demo``: a scripted user at a whole Hub with its proxy, suspended by the policy and
  back three times (``make demo-check``);
* ``tab``: in Chromium, our extension in JupyterLab and in Notebook 7;

or

* ``spawners``: our pods and containers with that KubeSpawner and DockerSpawner, and the
  chart's own program with our values. Neither a cluster nor Docker is needed.

They run in a copy of the checkout without the package, so that it is the wheel's that
is tried. Each result is a file of FOLDER/results; ``--page`` writes them into a page,
in place of the rows that it has of the same versions. Needs root, npm, and
/usr/bin/chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from benchmarks import marked_page

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[1]
#: Of the checkout, what the tests need beside the package.
TREE = ("charts", "demo", "etc", "helm-values", "simulation", "tests", "pyproject.toml")
TAB = [
    "tests/browser/test_first_key.py",
    "tests/browser/test_tab.py",
    "-k",
    "first_key_while or suspend_now",
]
SPAWNER_TESTS = [
    "--long",
    "tests/kube",
    "tests/hub/test_docker_spawner.py",
    "tests/hub/test_docker_container.py",
    "tests/kubernetes_manifests/test_values.py",
]
#: Where a page has its tables.
MARK = "benchmarks/versions.py {}"
#: What is tried in each environment of a table.
TRIED = {"together": ("demo", "tab"), "spawners": ("spawners",)}
_SECONDS = 900


@dataclass(frozen=True)
class Combination:
    """Versions that are tried together."""

    table: str
    python: str
    packages: dict[str, str]

    @property
    def versions(self) -> tuple[str, ...]:
        return (self.python, *self.packages.values())

    @property
    def name(self) -> str:
        return "-".join((self.table, *self.versions))

    @property
    def requirements(self) -> list[str]:
        return [f"{name}=={version}.*" for name, version in self.packages.items()]


def together(python: str, hub: str, lab: str, notebook: str) -> Combination:
    """A whole Hub with its users' pages."""
    packages = {"jupyterhub": hub, "jupyterlab": lab, "notebook": notebook}
    return Combination("together", python, packages)


def spawners(python: str, hub: str, kube: str, docker: str) -> Combination:
    """A Hub's side alone, with the spawners of others."""
    names = ("jupyterhub", "jupyterhub-kubespawner", "dockerspawner")
    packages = dict(zip(names, (hub, kube, docker), strict=True))
    return Combination("spawners", python, packages)


#: Each version once at least, the oldest together, the newest, and old beside new.
COMBINATIONS = [
    together("3.11", "5.2", "4.2", "7.2"),
    together("3.11", "5.5", "4.3", "7.3"),
    together("3.12", "5.5", "4.4", "7.4"),
    together("3.13", "6.1", "4.5", "7.5"),
    together("3.14", "6.1", "4.6", "7.6"),
    together("3.13", "5.2", "4.6", "7.6"),
    together("3.11", "6.1", "4.2", "7.2"),
    # The Hubs of Zero to JupyterHub 4.0 and 4.4, and the newest of each.
    spawners("3.12", "5.2", "7.0", "14.0"),
    spawners("3.12", "5.5", "7.0", "14.0"),
    spawners("3.13", "6.1", "7.1", "14.0"),
]


@dataclass
class Result:
    """What one combination gave, with the versions that it really had."""

    table: str
    date: str
    system: str
    versions: dict[str, str]
    tried: dict[str, str]
    seconds: int

    @property
    def row(self) -> list[str]:
        said = [*self.versions.values(), *self.tried.values()]
        return [self.date, self.system, *said, f"{self.seconds} s"]

    @property
    def failed(self) -> bool:
        return any("failed" in told for told in self.tried.values())


class Environment:
    """One combination's Python packages and programs, below a folder."""

    def __init__(self, folder: Path, combination: Combination, python: str) -> None:
        self.folder = folder
        self.combination = combination
        self.place = folder / combination.name
        self.bin = self.place / "bin"
        self._base = python

    def make(self, wheel: Path) -> None:
        """Install the wheel, the versions, the tests' packages and the proxy."""
        uv = self.folder / "uv" / "bin" / "uv"
        env = {**os.environ, "UV_CACHE_DIR": str(self.folder / "cache")}
        shutil.rmtree(self.place, ignore_errors=True)
        made = ["venv", "-q", f"--python={self._base}", str(self.place)]
        _run([str(uv), *made], env=env)
        python = f"--python={self.bin / 'python'}"
        packages = [f"{wheel}[agent,demo,test]", *self.combination.requirements]
        # As pip does; else the first server has to compile JupyterLab in its 30 s.
        install = ["pip", "install", "-q", "--compile-bytecode", python]
        _run([str(uv), *install, *packages], env=env)
        proxy = self.folder / "proxy/node_modules/.bin/configurable-http-proxy"
        (self.bin / "configurable-http-proxy").symlink_to(proxy)
        ours = str(self.bin / "jupyterhub-gpu-reclaim")
        _run([ours, "criu", "install", f"--to={self.folder / 'criu'}"])

    def versions(self) -> dict[str, str]:
        """What is really installed."""
        code = (
            "import json, platform, sys; from importlib.metadata import version;"
            "print(json.dumps({'python': platform.python_version(),"
            "**{name: version(name) for name in sys.argv[1:]}}))"
        )
        python = str(self.bin / "python")
        return dict(json.loads(_run([python, "-c", code, *self.combination.packages])))

    def tried(self, tree: Path) -> dict[str, str]:
        """How each of what is tried went."""
        how = {"demo": self.demo, "tab": self.tab, "spawners": self.spawners}
        return {what: how[what](tree) for what in TRIED[self.combination.table]}

    def demo(self, tree: Path) -> str:
        """Play the scripted user, who is back three times or fails."""
        done = self._python(tree, "demo", "-m", "demo", "--check")
        return "passed" if done == 0 else "failed"

    def tab(self, tree: Path) -> str:
        """Run the tests of an open tab; how many passed."""
        return self._tests(tree, "tab", TAB)

    def spawners(self, tree: Path) -> str:
        """Run the tests of both spawners; how many passed."""
        return self._tests(tree, "spawners", SPAWNER_TESTS)

    def _tests(self, tree: Path, what: str, which: list[str]) -> str:
        report = self.place / f"{what}.xml"
        own = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        short = f"--basetemp=/tmp/v-{os.getpid()}"  # names of sockets are short
        self._python(tree, what, "-m", "pytest", *own, short, *which)
        return _told(report)

    def _python(self, tree: Path, what: str, *words: str) -> int:
        env = {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "GPU_RECLAIM_CRIU": str(self.folder / "criu"),
        }
        for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"):
            env.pop(name, None)
        path = self.place / f"{what}.log"
        with path.open("w") as log:
            try:
                return subprocess.run(
                    [str(self.bin / "python"), *words],
                    cwd=tree,
                    env=env,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=_SECONDS,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return -1


def main() -> int:
    """Run the combinations, or write the page; 1 when one of them failed."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("folder", type=Path)
    options.add_argument("pythons", nargs="*", help="programs, of any version")
    options.add_argument(
        "--only", nargs="*", help="names, such as spawners-3.12-5.5-7.0-14.0"
    )
    options.add_argument("--page", type=Path, help="write the results into this page")
    chosen = options.parse_args()
    folder = chosen.folder.resolve()
    (folder / "results").mkdir(parents=True, exist_ok=True)
    if chosen.pythons:
        wheel, tree = _prepare(folder)
        pythons = {_version(python): python for python in chosen.pythons}
        for one in COMBINATIONS:
            if one.python not in pythons or one.name not in (chosen.only or [one.name]):
                continue
            result = _try(Environment(folder, one, pythons[one.python]), wheel, tree)
            path = folder / "results" / f"{one.name}.json"
            path.write_text(json.dumps(asdict(result), indent=1))
            print(*result.row, sep=" | ", flush=True)
    results = _results(folder)
    if chosen.page:
        _write(chosen.page, results)
    return int(any(one.failed for one in results))


def _try(environment: Environment, wheel: Path, tree: Path) -> Result:
    began = time.monotonic()
    environment.make(wheel)
    system = platform.freedesktop_os_release()
    return Result(
        table=environment.combination.table,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        system=system.get("PRETTY_NAME", "?"),
        versions=environment.versions(),
        tried=environment.tried(tree),
        seconds=round(time.monotonic() - began),
    )


def _prepare(folder: Path) -> tuple[Path, Path]:
    """The wheel, and the tests without the package beside them; uv and the proxy."""
    uv, proxy, tree = folder / "uv", folder / "proxy", folder / "tree"
    if not uv.exists():
        _run([sys.executable, "-m", "venv", str(uv)])
        tools = ["uv", "build", "hatch-vcs", "hatchling"]
        _run([str(uv / "bin/pip"), "install", "-q", *tools])
    dist = folder / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    build = [str(uv / "bin/python"), "-m", "build", "--wheel", "--no-isolation"]
    _run([*build, f"--outdir={dist}", str(ROOT)])
    if not (proxy / "node_modules").exists():
        shutil.copytree(ROOT / "scripts/proxy", proxy, dirs_exist_ok=True)
        _run(["npm", "ci", "--silent", "--no-audit", "--no-fund", f"--prefix={proxy}"])
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    for name in TREE:
        copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copied(ROOT / name, tree / name)
    (tree / ".cache").mkdir()
    shutil.copy2(ROOT / ".cache" / "helm", tree / ".cache" / "helm")
    (wheel,) = dist.glob("*.whl")
    return wheel, tree


def _run(command: list[str], env: dict[str, str] | None = None) -> str:
    return subprocess.run(
        command, env=env, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _version(python: str) -> str:
    """Its first two numbers; nothing of one that does not run, as pyenv's may not."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, check=False)
    return done.stdout.decode().strip()


def _told(report: Path) -> str:
    """How many tests of a report passed."""
    if not report.exists():
        return "failed"
    cases = list(ET.parse(report).iter("testcase"))
    bad = [
        one for one in cases if {"failure", "error", "skipped"} & {e.tag for e in one}
    ]
    good = f"{len(cases) - len(bad)} of {len(cases)} passed"
    return "failed" if not cases else f"{good}, failed" if bad else good


def _results(folder: Path) -> list[Result]:
    paths = [folder / "results" / f"{one.name}.json" for one in COMBINATIONS]
    return [Result(**json.loads(path.read_text())) for path in paths if path.exists()]


def minors(versions: Iterable[str]) -> tuple[str, ...]:
    """Their first two numbers, as combinations name them."""
    return tuple(".".join(one.split(".")[:2]) for one in versions)


def rows(page: Path, table: str) -> dict[tuple[str, ...], list[str]]:
    """The rows that a page has, by the versions that they are of."""
    lines = marked_page.lines(page, MARK.format(table))[2:]
    cells = [line.strip("| ").split(" | ") for line in lines]
    count = len(TRIED[table]) + 1  # and the seconds
    return {minors(row[2:-count]): row for row in cells}


def _write(page: Path, results: list[Result]) -> None:
    """Put each table where the page has its marks."""
    for table in TRIED:
        known = rows(page, table)
        for one in results:
            if one.table == table:
                known[minors(one.versions.values())] = one.row
        order = [one.versions for one in COMBINATIONS if one.table == table]
        head = marked_page.lines(page, MARK.format(table))[:2]
        made = [f"| {' | '.join(known[one])} |" for one in order if one in known]
        marked_page.put(page, MARK.format(table), "\n".join([*head, *made]))


if __name__ == "__main__":
    sys.exit(main())

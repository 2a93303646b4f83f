"""One whole pass for each combination of versions: docs/reference/versions.md.

    sudo .venv/bin/python benchmarks/versions.py FOLDER python3.11 python3.13
    .venv/bin/python benchmarks/versions.py FOLDER --page docs/reference/versions.md

Each combination of :data:`COMBINATIONS` whose Python is among those given gets an
environment below FOLDER with the wheel of this checkout, and in it

* ``demo``: a scripted user at a whole Hub with its proxy, suspended by the policy and
  back three times (``make demo-check``);
* ``tab``: in Chromium, our extension in JupyterLab and in Notebook 7.

They run in a copy of the checkout without the package, so that it is the wheel's that
is tried. Each result is a file of FOLDER/results; ``--page`` writes them into a page.
One that was there is replaced. Run it in other systems with the same FOLDER/results.
Needs root, npm, and /usr/bin/chromium.
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
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
#: Of the checkout, what the tests need beside the package.
TREE = ("demo", "simulation", "tests", "pyproject.toml")
TAB = [
    "tests/browser/test_idle_tab.py",
    "tests/browser/test_first_key.py",
    "tests/browser/test_tab.py",
    "-k",
    "open_tabs or notebook_in_a_tab or reload_of_a_suspended",
]
#: Where a page has its table.
BEGIN, END = "<!-- benchmarks/versions.py -->", "<!-- end -->"
_SECONDS = 900


@dataclass(frozen=True)
class Combination:
    """Versions that are tried together."""

    python: str
    jupyterhub: str
    jupyterlab: str
    notebook: str

    @property
    def name(self) -> str:
        return f"{self.python}-{self.jupyterhub}-{self.jupyterlab}"

    @property
    def requirements(self) -> list[str]:
        wanted = (
            ("jupyterhub", self.jupyterhub),
            ("jupyterlab", self.jupyterlab),
            ("notebook", self.notebook),
        )
        return [f"{name}=={version}.*" for name, version in wanted]


#: Each version once at least, the oldest together, the newest, and old beside new.
COMBINATIONS = [
    Combination("3.11", "5.2", "4.2", "7.2"),
    Combination("3.11", "5.5", "4.3", "7.3"),
    Combination("3.12", "5.5", "4.4", "7.4"),
    Combination("3.13", "6.1", "4.5", "7.5"),
    Combination("3.14", "6.1", "4.6", "7.6"),
    Combination("3.13", "5.2", "4.6", "7.6"),
    Combination("3.11", "6.1", "4.2", "7.2"),
]


@dataclass
class Result:
    """What one combination gave, with the versions that it really had."""

    date: str
    system: str
    linux: str
    python: str
    jupyterhub: str
    jupyterlab: str
    notebook: str
    demo: str
    tab: str
    seconds: int


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
            "import json, platform; from importlib.metadata import version;"
            "names = ['jupyterhub', 'jupyterlab', 'notebook'];"
            "print(json.dumps({'python': platform.python_version(),"
            "**{name: version(name) for name in names}}))"
        )
        return dict(json.loads(_run([str(self.bin / "python"), "-c", code])))

    def demo(self, tree: Path) -> str:
        """Play the scripted user, who is back three times or fails."""
        done = self._python(tree, "demo", "-m", "demo", "--check")
        return "passed" if done == 0 else "failed"

    def tab(self, tree: Path) -> str:
        """Run the tests of an open tab; how many passed."""
        report = self.place / "tab.xml"
        own = ["-q", "-p", "no:cacheprovider", "--reruns=0", f"--junitxml={report}"]
        short = f"--basetemp=/tmp/v-{os.getpid()}"  # names of sockets are short
        self._python(tree, "tab", "-m", "pytest", *own, short, *TAB)
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
    options.add_argument("--only", nargs="*", help="names, such as 3.11-5.2-4.2")
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
            print(*_row(result), sep=" | ", flush=True)
    results = _results(folder)
    if chosen.page:
        _write(chosen.page, results)
    return int(any(_failed(one) for one in results))


def _try(environment: Environment, wheel: Path, tree: Path) -> Result:
    began = time.monotonic()
    environment.make(wheel)
    system = platform.freedesktop_os_release()
    return Result(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        system=system.get("PRETTY_NAME", "?"),
        linux=platform.release(),
        **environment.versions(),
        demo=environment.demo(tree),
        tab=environment.tab(tree),
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


def _failed(result: Result) -> bool:
    return any("failed" in told for told in (result.demo, result.tab))


def _results(folder: Path) -> list[Result]:
    known = {one.name: place for place, one in enumerate(COMBINATIONS)}
    paths = [p for p in (folder / "results").glob("*.json") if p.stem in known]
    paths.sort(key=lambda path: known[path.stem])
    return [Result(**json.loads(path.read_text())) for path in paths]


def _row(one: Result) -> list[str]:
    versions = [one.python, one.jupyterhub, one.jupyterlab, one.notebook]
    said = [one.demo, one.tab, f"{one.seconds} s"]
    return [one.date, one.system, *versions, *said]


def _write(page: Path, results: list[Result]) -> None:
    """Put the table where the page has its marks."""
    head = ["date", "system", "Python", "JupyterHub", "JupyterLab", "Notebook"]
    rows = [[*head, "demo", "tab", "took"], ["---"] * 9, *map(_row, results)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())

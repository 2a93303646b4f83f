"""``docs/how-to/kubernetes.md`` names only what there is."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.clients.kubernetes import RULES
from tests.cluster.options import ROLES, pytest_addoption

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "kubernetes.md"
ROOT = PAGE.parents[2]
TEXT = PAGE.read_text()


class Options:
    """Takes what the tests on a cluster add to pytest."""

    def __init__(self):
        self.names = set()

    def getgroup(self, *_):
        return self

    def addoption(self, name, **_):
        self.names.add(name)


def test_every_code_is_a_reason():
    rows = [line for line in TEXT.splitlines() if line.startswith("| ")]
    told = {code for row in rows for code in re.findall(r"\(`([^)]*)`\)", row)}
    codes = {code for some in told for code in some.split("`, `")}
    assert len(codes) > 15
    assert codes <= {reason.value for reason in Reason}


def test_every_rule_is_explained():
    for rule in RULES:
        assert f"| `{rule.resource}: {', '.join(rule.verbs)}` |" in TEXT
        assert rule.why in TEXT


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT):
        if not target.startswith("http"):
            assert (PAGE.parent / target).exists(), target
    for path in re.findall(r"(?<!/)\b(?:etc|helm-values|tests)/[\w./-]*\w", TEXT):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize(
    "page",
    [
        PAGE,
        ROOT / "docs" / "tutorial" / "kubernetes.md",
        ROOT / "etc" / "kubernetes" / "templates" / "NOTES.txt",
    ],
    ids=["how-to", "tutorial", "notes"],
)
def test_the_step_that_begins_the_store_passes_as_it_is_written(page, tmp_path):
    """With the Secret that the step before makes, once its volumes are mounted."""
    text = page.read_text()
    steps = [
        "apply -f secrets.yaml",
        " wait pod -l app",
        " exec daemonset",
        "get pods -o",
    ]
    assert [*map(text.index, steps)] == sorted(map(text.index, steps))
    keys = tmp_path / "keys"
    keys.mkdir()
    make = ROOT / "etc" / "kubernetes" / "make-secrets"
    made = subprocess.run([make], capture_output=True, check=True, timeout=60)
    for secret in yaml.safe_load_all(made.stdout):
        if secret["metadata"]["name"] == "gpu-reclaim-master-keys":
            for name, data in secret["data"].items():
                (keys / name).write_bytes(base64.b64decode(data))
                (keys / name).chmod(0o400)
    (line,) = re.findall(r"agent -- sh -c '([^']*)'", text)
    line = line.replace("--options-file /etc/gpu-reclaim/store/options.json", "")
    line = line.replace("/etc/gpu-reclaim/master-keys", str(keys))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", line],
        env={**os.environ, "PATH": path, "STORE_URL": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"The store {(keys / 'store-id').read_text()[:8]}")


def test_every_option_of_the_tests_on_a_cluster_is_one():
    options = Options()
    pytest_addoption(options)
    told = set(re.findall(r"--cluster-[\w-]+", TEXT))
    assert told <= options.names
    assert {f"--cluster-{role}-image" for role in ROLES} <= options.names

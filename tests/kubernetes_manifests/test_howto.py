"""``docs/how-to/kubernetes.md`` names only what there is."""

import base64
import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from jupyterhub_gpu_reclaim.cli import agent_secrets
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.cluster.options import ROLES, pytest_addoption
from tests.support import helm
from tests.support.cluster_rules import RULES
from tests.support.ran import ran

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "kubernetes.md"
ROOT = PAGE.parents[2]
TEXT = PAGE.read_text()
PAGES = [PAGE, ROOT / "docs" / "tutorial" / "kubernetes.md"]


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


def test_every_path_leads_somewhere():
    for path in re.findall(
        r"(?<!/)\b(?:charts|etc|helm-values|scripts|tests)/[\w./-]*\w", TEXT
    ):
        assert (ROOT / path).exists(), path


def test_the_command_that_begins_the_store_passes_as_it_is_written(tmp_path):
    """With the Secret of master keys, as its volume has it."""
    keys = tmp_path / "keys"
    keys.mkdir()
    for secret in agent_secrets.new(agent_secrets.Wanted()):
        if secret["metadata"]["name"] == agent_secrets.Wanted.master_keys:
            for name, data in secret["data"].items():
                (keys / name).write_bytes(base64.b64decode(data))
                (keys / name).chmod(0o400)
    (line,) = re.findall(r"agent -- sh -c '([^']*)'", TEXT)
    line = re.sub("--AgentApp.store_options_file=[^ ]*", "", line)
    line = line.replace("/etc/gpu-reclaim/master-keys", str(keys))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = ran(
        ["sh", "-c", line],
        env={**os.environ, "PATH": path, "STORE_URL": str(tmp_path / "store")},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"The store {(keys / 'store-id').read_text()[:8]}")


@helm.needed
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_the_values_of_the_pages_are_taken_by_the_chart(page):
    """Those that are written there, and those that ``helm install`` is given."""
    text = page.read_text()
    given = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    files = re.findall(r"-f (charts/\S+\.yaml)", text)
    [values] = [*given, *((ROOT / name).read_text() for name in files)]
    assert helm.rendered(yaml.safe_load(values))
    commands = [line.strip() for line in text.splitlines() if "helm install" in line]
    assert any(f"{helm.FOLDER.relative_to(ROOT)} -n gpu-reclaim" in c for c in commands)


@helm.needed
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_the_hubs_file_is_made_by_what_the_notes_say(page):
    [line] = re.findall(r"^ *helm get notes .*$", page.read_text(), re.MULTILINE)
    said = helm.notes()
    assert line.strip() in said
    pipe = line.partition(" | ")[2].partition(" > ")[0]
    done = ran(["sh", "-c", pipe], input=f"NOTES:\n{said}\n", check=True)
    assert yaml.safe_load(done.stdout) == helm.hub_values()


def test_the_secrets_of_the_page_are_those_that_are_made():
    told = set(
        re.findall(
            r"^\| `(gpu-reclaim-[\w-]+)` \| (?:agents'|Hub's)", TEXT, re.MULTILINE
        )
    )
    made = agent_secrets.new(agent_secrets.Wanted())
    assert told == {one["metadata"]["name"] for one in made}
    for one in made:
        [row] = re.findall(rf"^\| `{one['metadata']['name']}` .*$", TEXT, re.MULTILINE)
        for file in one["data"]:
            assert f"`{file}`" in row or file[:2] == "20", row


def test_every_option_of_the_tests_on_a_cluster_is_one():
    options = Options()
    pytest_addoption(options)
    told = set(re.findall(r"--cluster-[\w-]+", TEXT))
    assert told <= options.names
    assert {f"--cluster-{role}-image" for role in ROLES} <= options.names

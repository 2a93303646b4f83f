"""``docs/how-to/kubernetes.md`` names only what there is."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_every_option_of_the_tests_on_a_cluster_is_one():
    options = Options()
    pytest_addoption(options)
    told = set(re.findall(r"--cluster-[\w-]+", TEXT))
    assert told <= options.names
    assert {f"--cluster-{role}-image" for role in ROLES} <= options.names

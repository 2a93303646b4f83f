"""The ten commands of ``docs/tutorial/kubernetes.md``, each as far as it can run here.

There is no Docker, no kind and no API server: what they are given is compared with what
the charts ask for.
"""

import itertools
import json
import re
import shlex

import yaml
from jsonschema import Draft7Validator

from tests.kubernetes_manifests.test_values import CHART
from tests.support import helm
from tests.support.helm import ROOT, merged
from tests.support.ran import ran

PAGE = ROOT / "docs" / "tutorial" / "kubernetes.md"
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]
AGENT = "charts/jupyterhub-gpu-reclaim"


def one(beginning):
    [found] = [line for line in COMMANDS if line.startswith(beginning)]
    return shlex.split(found)


def after(words, option):
    return [value for name, value in itertools.pairwise(words) if name == option]


def values(words):
    """What Helm makes of the files that a command names, in their order."""
    found = {}
    for name in after(words, "-f"):
        made = name == "gpu-reclaim.yaml"  # by the command before it
        more = helm.hub_values() if made else yaml.safe_load((ROOT / name).read_text())
        found = merged(found, more)
    return found


def test_there_are_ten_and_the_first_is_that_of_who_contributes():
    assert len(COMMANDS) == 10
    assert COMMANDS[0] in (ROOT / "CONTRIBUTING.md").read_text().splitlines()


def test_the_node_gets_what_a_server_asks_for():
    words = one("kubectl patch")
    assert one("kind create") == ["kind", "create", "cluster"]  # so this is its node:
    assert words[2:4] == ["node", "kind-control-plane"]
    [patch] = after(words, "-p")
    status = json.loads(patch)["status"]
    hub = yaml.safe_load((ROOT / "helm-values" / "kind.yaml").read_text())
    assert status["capacity"] == hub["singleuser"]["extraResource"]["limits"]
    assert status["allocatable"] == status["capacity"]


@helm.needed
def test_the_images_are_built_under_the_names_that_the_chart_asks_for():
    [file] = after(one(f"helm install gpu-reclaim {AGENT}"), "-f")
    wanted = yaml.safe_load((ROOT / file).read_text())
    wanted = merged(wanted, {"image": {"tag": "0.1.0"}})  # as the release's chart has
    asked_for = set(re.findall(r"image: \"?([^\s\"]+)", helm.text(wanted)))
    notes = helm.notes(wanted)
    asked_for |= set(re.findall(r"registry\.example\.org\S*?-hub:[\d.]+", notes))
    built = set()
    for name in ("agent", "hub"):
        words = one(f"docker build -f etc/containers/{name}/")
        [dockerfile], [tag] = after(words, "-f"), after(words, "-t")
        assert (ROOT / dockerfile).exists()
        built.add(tag)
    assert asked_for == built
    assert one("kind load docker-image")[3:] == sorted(built)


@helm.needed
def test_the_agents_are_installed_by_the_command_as_it_is_written():
    words = one(f"helm install gpu-reclaim {AGENT}")
    done = ran(
        [str(helm.PROGRAM), *words[1:], "--dry-run=client"], cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "kind: DaemonSet" in done.stdout


@helm.needed
def test_the_hubs_chart_takes_the_values_in_that_order():
    words = one("helm install jupyterhub")
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = merged(yaml.safe_load((CHART / "values.yaml").read_text()), values(words))
    errors = Draft7Validator(schema).iter_errors(found)
    assert [f"{error.json_path}: {error.message}" for error in errors] == []
    assert found["custom"]["gpuReclaim"]["idle_after"] == 120  # the page: two minutes
    assert found["hub"]["config"]["DummyAuthenticator"]["password"] in PAGE.read_text()
    [version] = after(words, "--version")
    assert version in (CHART / "README.md").read_text()
    order = [COMMANDS.index(line) for line in COMMANDS if "gpu-reclaim.yaml" in line]
    assert COMMANDS[order[0]].endswith("> gpu-reclaim.yaml")

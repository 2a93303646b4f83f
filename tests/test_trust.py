"""The page for a security reviewer names exactly the rights that are shipped.

It is read by people who decide by it, and a right that it does not name is one that
nobody has weighed. So rights and mounts are compared both ways, and every place in the
code that it names has to be there.
"""

import re
from pathlib import Path

import pytest

from tests.support import helm
from tests.support.process_rights import UNIT

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "explanation" / "trust.md").read_text()
#: What a unit's line gives to its program, or takes from it.
RIGHTS = re.compile(
    r"^((?:Ambient|Bind|Capability|Device|EnvironmentFile|FileDescriptor|Group|NoNew"
    r"|Private|Protect|Read|Restrict|Root|SecureBits|Supplementary|SystemCall|User)\w*"
    r"|\w+Directory)=",
    re.MULTILINE,
)


def column(head: str, at: int = 0) -> list[str]:
    [table] = re.findall(
        rf"^\| {head} \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE
    )
    cells = [line.strip("| ").split(" | ")[at] for line in table.splitlines()]
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def agent():
    """The shipped DaemonSet's pod and its container."""
    store = {"store": {"optionsSecret": "gpu-reclaim-store"}}
    return helm.agents(helm.merged(helm.LEAST, store))


@helm.needed
def test_capabilities_of_the_page_are_those_of_the_daemon_set():
    given = agent()[1]["securityContext"]["capabilities"]["add"]
    assert sorted(column("capability")) == sorted(given)


@helm.needed
def test_mounts_of_the_page_are_those_of_the_daemon_set():
    pod, container = agent()
    named = {one["name"] for one in pod["volumes"]}
    assert named == {one["name"] for one in container["volumeMounts"]}
    told = set(column("mount"))
    assert told - {"hostPath"} == named
    [on_the_host] = [one["name"] for one in pod["volumes"] if "hostPath" in one]
    assert f"| `{on_the_host}` (`hostPath`) |" in PAGE


@helm.needed
def test_other_rights_of_the_page_are_those_of_the_daemon_set():
    pod, container = agent()
    context = container["securityContext"]
    given = {name for name, value in pod.items() if name.startswith("host") and value}
    given |= set(context) - {"capabilities", "runAsNonRoot"}
    profiles = {
        one["type"]
        for one in context.values()
        if isinstance(one, dict) and "type" in one
    }
    assert set(column("pod")) == given | profiles
    assert "privileged" not in context
    assert context["capabilities"]["drop"] == ["ALL"]


def test_rights_of_the_unit_are_those_that_the_page_names():
    text = UNIT.read_text()
    given = set(RIGHTS.findall(text))
    about = PAGE.partition("**On one machine**")[2].partition("**In a cluster**")[0]
    modes = {name for name in given if name.endswith("Mode")}
    assert given - modes == set(re.findall(r"`([A-Z]\w+)`", about))


PLACES = re.findall(r"`((?:\w+/)+\w+\.py)`(?: `(\w+)`)?", PAGE)


@pytest.mark.parametrize(("file", "name"), PLACES, ids=" ".join)
def test_place_in_the_code_is_there(file, name):
    there = ROOT / "jupyterhub_gpu_reclaim" / file
    assert re.search(rf"\b{name}", there.read_text())


def test_every_capability_and_mount_has_a_place_in_the_code():
    for head in ("capability", "mount"):
        [table] = re.findall(
            rf"^\| {head} \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE
        )
        for line in table.splitlines():
            assert re.search(r"\.py`|CRIU's `\w+\.c`", line), line


@pytest.mark.parametrize(
    "page", ["README.md", "docs/how-to/kubernetes.md", "docs/reference/public-api.md"]
)
def test_oldest_linux_is_that_of_the_newest_feature_that_is_needed(page):
    since = [tuple(map(int, one)) for one in re.findall(r"Linux (\d+)\.(\d+) \|", PAGE)]
    newest = "{}.{}".format(*max(since))
    text = (ROOT / page).read_text()
    assert re.search(rf"Linux (?:≥ )?{re.escape(newest)}\b", text)

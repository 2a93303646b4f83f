"""Which level of the Pod Security Standards each of our pods needs, and why.

``docs/how-to/kubernetes-platforms.md`` says so to administrators, and is read here.
"""

import logging
from pathlib import Path

import pytest
from kubespawner.objects import make_pod

from jupyterhub_gpu_reclaim.hub.kube.pod import PodPurpose, prepared
from jupyterhub_gpu_reclaim.session_init.command_line import InitArguments
from tests.kube.schemas import as_json
from tests.support import helm
from tests.support.pod_security import LEVELS, broken, level

pytestmark = helm.needed

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "kubernetes-platforms.md"
#: What KubeSpawner is told, for a pod of the level.
SETTINGS = {
    "restricted": {
        "uid": 1000,
        "allow_privilege_escalation": False,
        "container_security_context": {
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    },
    "baseline": {"uid": 1000},
    "privileged": {"privileged": True},
}


def agent():
    return helm.agents()[0]


def job(name):
    made = [*helm.rendered(), *helm.hooks("pre-install")]
    [found] = [
        one for one in made if (one["kind"], one["metadata"]["name"]) == ("Job", name)
    ]
    return found["spec"]["template"]["spec"]


def of_the_test():
    return helm.one_of(helm.hooks("test"), "Pod")["spec"]


def session(**more):
    return make_pod(
        name="jupyter-ada",
        cmd=["jupyterhub-singleuser"],
        port=8888,
        image="quay.io/jupyter/base:1",
        image_pull_policy="IfNotPresent",
        logger=logging.getLogger(),
        volumes=[{"name": "home", "persistentVolumeClaim": {"claimName": "a"}}],
        **more,
    )


def table(head):
    """The rows of the page's table that has this first column."""
    _, _, text = PAGE.read_text().partition(f"| {head} |")
    assert text, head
    rows = text.partition("\n\n")[0].splitlines()[2:]
    return {
        cells[0]: cells[1:]
        for cells in (
            [cell.strip() for cell in row.strip("|").split(" | ")] for row in rows
        )
    }


def test_the_agents_break_these_rules_and_no_other():
    rules = table("the agents break")
    assert broken(agent(), "baseline") == set(rules)
    assert level(agent()) == "privileged"
    install = (PAGE.parent / "kubernetes.md").read_text()
    assert "pod-security.kubernetes.io/enforce=privileged" in install


def test_each_pod_needs_the_level_that_the_page_says():
    told = {name: cells[0].strip("`") for name, cells in table("pod").items()}
    assert told.pop("agent") == level(agent())
    assert told.pop("pod that makes the Secrets") == level(job("gpu-reclaim-secrets"))
    assert told.pop("pod that begins the store") == level(job("gpu-reclaim-store-init"))
    assert told.pop("pod of `helm test`") == level(of_the_test())
    assert told.pop("init container of the Hub's pod") == "restricted"
    [of_sessions] = told
    assert of_sessions == "session"


def test_the_pods_without_rights_are_restricted():
    for pod in (of_the_test(), job("gpu-reclaim-secrets")):
        assert broken(pod, "restricted") == set()
    [ours] = helm.hub_values()["hub"]["initContainers"]
    of_z2jh = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    hub = {"securityContext": of_z2jh, "initContainers": [ours], "containers": []}
    assert broken(hub, "restricted") == set()


@pytest.mark.parametrize("wanted", LEVELS)
@pytest.mark.parametrize("mode", ["start", "hold"])
def test_a_sessions_pod_needs_no_other_level_than_kubespawners(wanted, mode):
    pod = session(**SETTINGS[wanted])
    image = "quay.io/jupyter/base@sha256:" + "a" * 64
    init = InitArguments("f" * 32, "ada", "", "", holding=mode == "hold")
    purpose = PodPurpose(init=init, image=image)
    ours, theirs = (as_json(one)["spec"] for one in (prepared(pod, purpose), pod))
    assert level(theirs) == wanted
    assert broken(ours, "restricted") == broken(theirs, "restricted")


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"hostPID": True}, "Host Namespaces"),
        ({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, "HostPath Volumes"),
        ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "SELinux"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "Seccomp"),
        ({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}]}}, "Sysctls"),
    ],
)
def test_the_rules_find_what_they_are_for(changed, rule):
    pod = of_the_test()
    assert broken(pod, "restricted") == set()
    assert rule in broken({**pod, **changed}, "baseline")

"""Rights of our pods: the agents' alone need any, and a session's get none from us.

``docs/how-to/kubernetes-platforms.md`` says which level of the Pod Security Standards
each needs; what the agents have is compared with a page in ``tests/test_trust.py``.
"""

import logging

import pytest
from kubespawner.objects import make_pod

from jupyterhub_gpu_reclaim.common.models import Identity
from jupyterhub_gpu_reclaim.hub.kube.pod import prepared
from jupyterhub_gpu_reclaim.hub.spawner.placement import Purpose
from jupyterhub_gpu_reclaim.session_init.command_line import InitArguments
from tests.kube.schemas import as_json
from tests.support import helm

pytestmark = helm.needed

HOST = ("hostPID", "hostIPC", "hostNetwork")
#: What the level "restricted" asks of a container.
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def job(name):
    made = [*helm.rendered(), *helm.hooks("pre-install")]
    [found] = [
        one for one in made if (one["kind"], one["metadata"]["name"]) == ("Job", name)
    ]
    return found["spec"]["template"]["spec"]


def of_the_test():
    return helm.one_of(helm.hooks("test"), "Pod")["spec"]


def of_the_hub():
    """Beside ours it has what zero-to-jupyterhub gives it."""
    [ours] = helm.hub_values()["hub"]["initContainers"]
    of_z2jh = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"securityContext": of_z2jh, "containers": [ours]}


def is_restricted(pod):
    """Whether it keeps to that level, as far as pods like ours could break it."""
    whole = pod.get("securityContext", {})
    contexts = [
        {**whole, **one.get("securityContext", {})}
        for one in [*pod.get("initContainers", ()), *pod["containers"]]
    ]
    return (
        not any(pod.get(name) for name in HOST)
        and not any("hostPath" in volume for volume in pod.get("volumes", ()))
        and all(own.get("runAsUser") != 0 for own in contexts)
        and all(own.items() >= RESTRICTED.items() for own in contexts)
    )


@pytest.mark.parametrize(
    "pod", [of_the_test, lambda: job("gpu-reclaim-secrets"), of_the_hub]
)
def test_the_pods_without_rights_are_restricted(pod):
    assert is_restricted(pod())
    assert not is_restricted(helm.agents()[0])


def rights(pod):
    """All that a level of the standards is about."""
    containers = [*(pod.get("initContainers") or ()), *pod["containers"]]
    names = (*HOST, "volumes", "securityContext")
    return (
        {name: pod.get(name) for name in names},
        [(one.get("securityContext"), one.get("ports")) for one in containers],
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"uid": 1000, "container_security_context": RESTRICTED},
        {"uid": 1000},
        {"privileged": True},
    ],
    ids=["restricted", "baseline", "privileged"],
)
@pytest.mark.parametrize("mode", ["start", "hold"])
def test_a_sessions_pod_has_no_other_rights_than_kubespawners(settings, mode):
    pod = make_pod(
        name="jupyter-ada",
        cmd=["jupyterhub-singleuser"],
        port=8888,
        image="quay.io/jupyter/base:1",
        image_pull_policy="IfNotPresent",
        logger=logging.getLogger(),
        volumes=[{"name": "home", "persistentVolumeClaim": {"claimName": "a"}}],
        **settings,
    )
    image = "quay.io/jupyter/base@sha256:" + "a" * 64
    init = InitArguments("f" * 32, "ada", holding=mode == "hold")
    saved = Identity(api_token="saved", port=1, image=image)
    purpose = Purpose(init=init, saved=saved if mode == "hold" else None)
    ours, theirs = (as_json(one)["spec"] for one in (prepared(pod, purpose), pod))
    assert rights(ours) == rights(theirs)
